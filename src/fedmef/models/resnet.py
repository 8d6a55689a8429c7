"""ResNet: He et al., "Deep Residual Learning for Image Recognition", https://arxiv.org/abs/1512.03385.

Deviations: the bottleneck strides in its 3x3 convolution ("v1.5"), and the CIFAR stem keeps images at full
size, the strided one at half. Parameters are named as in torchvision, so its weights load into the ImageNet
stem.
"""

from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from fedmef.nn.layout import fastest_layout

Stem = Literal["cifar", "strided", "imagenet"]
STEMS: tuple[Stem, ...] = get_args(Stem)


def initialise_convolutions(network: nn.Module) -> None:
    """Kaiming-normal weights by fan-out (He et al. 2015, https://arxiv.org/abs/1502.01852).

    Batch norms (one, zero) and classifier keep PyTorch's start.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False),
        nn.BatchNorm2d(outputs),
    )


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    expansion: ClassVar[int] = 1

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, planes, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(planes, planes, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = _shortcut(inputs, planes, stride)
        self.relu2 = nn.ReLU()

    def forward(self, inputs: Tensor) -> Tensor:
        """The block's output: the residual plus the shortcut, rectified."""
        residual = self.relu1(self.bn1(self.conv1(inputs)))
        residual = self.bn2(self.conv2(residual))
        outputs: Tensor = self.relu2(residual + self.downsample(inputs))
        return outputs


class Bottleneck(nn.Module):
    """1x1 down, 3x3, 1x1 up to four times the planes, around a shortcut."""

    expansion: ClassVar[int] = 4

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        outputs = planes * self.expansion
        self.conv1 = nn.Conv2d(inputs, planes, kernel_size=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(planes, planes, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.relu2 = nn.ReLU()
        self.conv3 = nn.Conv2d(planes, outputs, kernel_size=1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _shortcut(inputs, outputs, stride)
        self.relu3 = nn.ReLU()

    def forward(self, inputs: Tensor) -> Tensor:
        """The block's output: the residual plus the shortcut, rectified."""
        residual = self.relu1(self.bn1(self.conv1(inputs)))
        residual = self.relu2(self.bn2(self.conv2(residual)))
        residual = self.bn3(self.conv3(residual))
        outputs: Tensor = self.relu3(residual + self.downsample(inputs))
        return outputs


Block = type[BasicBlock] | type[Bottleneck]


def _stage(block: Block, inputs: int, planes: int, depth: int, stride: int) -> nn.Sequential:
    first = block(inputs, planes, stride)
    others = [block(planes * block.expansion, planes, 1) for _ in range(depth - 1)]
    return nn.Sequential(first, *others)


class ResNet(nn.Module):
    """A stem, four stages of blocks whose planes double from `width`, and a linear classifier."""

    def __init__(
        self,
        block: Block,
        depths: tuple[int, int, int, int],
        *,
        classes: int,
        channels: int,
        width: int,
        stem: Stem,
    ) -> None:
        super().__init__()
        self.maxpool: nn.Module = nn.Identity()
        if stem == "imagenet":
            self.conv1 = nn.Conv2d(channels, width, kernel_size=7, stride=2, padding=3, bias=False)
            self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        else:
            stride = 2 if stem == "strided" else 1
            self.conv1 = nn.Conv2d(channels, width, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        grown = width * block.expansion
        self.layout = fastest_layout([grown])  # of the narrowest strided shortcut
        self.layer1 = _stage(block, width, width, depths[0], stride=1)
        self.layer2 = _stage(block, grown, 2 * width, depths[1], stride=2)
        self.layer3 = _stage(block, 2 * grown, 4 * width, depths[2], stride=2)
        self.layer4 = _stage(block, 4 * grown, 8 * width, depths[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8 * grown, classes)
        initialise_convolutions(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [batch, classes] of images [batch, channels, height, width]."""
        images = images.contiguous(memory_format=self.layout)  # free if they are so
        features = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        features = self.layer4(self.layer3(self.layer2(self.layer1(features))))
        logits: Tensor = self.fc(torch.flatten(self.avgpool(features), 1))
        return logits


def resnet18(*, classes: int, channels: int = 3, width: int = 64, stem: Stem = "cifar") -> ResNet:
    """ResNet-18."""
    return ResNet(BasicBlock, (2, 2, 2, 2), classes=classes, channels=channels, width=width, stem=stem)


def resnet34(*, classes: int, channels: int = 3, width: int = 64, stem: Stem = "cifar") -> ResNet:
    """ResNet-34."""
    return ResNet(BasicBlock, (3, 4, 6, 3), classes=classes, channels=channels, width=width, stem=stem)


def resnet50(*, classes: int, channels: int = 3, width: int = 64, stem: Stem = "cifar") -> ResNet:
    """ResNet-50."""
    return ResNet(Bottleneck, (3, 4, 6, 3), classes=classes, channels=channels, width=width, stem=stem)
