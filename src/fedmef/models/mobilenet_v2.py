"""MobileNetV2: Sandler et al., "Inverted Residuals and Linear Bottlenecks", https://arxiv.org/abs/1801.04381.

Deviations: the width is the number of stem channels (32 for the paper's multiplier of 1), and there is no
dropout before the classifier, so that training draws no random numbers. Parameters are named
as in torchvision.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedmef.models.resnet import Stem, initialise_convolutions


class Stage(NamedTuple):
    """A row of the paper's table 2: t, c, n, s."""

    expansion: int
    channels: int
    depth: int
    stride: int


IMAGENET_STAGES = (
    Stage(1, 16, 1, 1),
    Stage(6, 24, 2, 2),
    Stage(6, 32, 3, 2),
    Stage(6, 64, 4, 2),
    Stage(6, 96, 3, 1),
    Stage(6, 160, 3, 2),
    Stage(6, 320, 1, 1),
)
# With the stem's stride of 1, 32x32 images end at 4x4 instead of 1x1.
CIFAR_STAGES = (
    IMAGENET_STAGES[0],
    IMAGENET_STAGES[1]._replace(stride=1),
    *IMAGENET_STAGES[2:],
)
STEM_CHANNELS = 32
LAST_CHANNELS = 1280


def divisible_channels(channels: float, divisor: int = 8) -> int:
    """The nearest multiple of `divisor` that does not lose more than a tenth, as in the reference code."""
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * channels else rounded


def _convolution(
    inputs: int, outputs: int, *, kernel: int, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(),
    )


class InvertedResidual(nn.Module):
    """1x1 up, depthwise 3x3, linear 1x1 down; a shortcut where the shape stays."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        layers: list[nn.Module] = [] if expansion == 1 else [_convolution(inputs, hidden, kernel=1)]
        self.conv = nn.Sequential(
            *layers,
            _convolution(hidden, hidden, kernel=3, stride=stride, groups=hidden),
            nn.Conv2d(hidden, outputs, kernel_size=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.has_shortcut = stride == 1 and inputs == outputs

    def forward(self, inputs: Tensor) -> Tensor:
        """The block's output, which is not rectified."""
        outputs: Tensor = self.conv(inputs)
        return inputs + outputs if self.has_shortcut else outputs


class MobileNetV2(nn.Module):
    """A stem, seven stages of inverted residuals, a 1x1 convolution and a linear classifier."""

    def __init__(self, *, classes: int, channels: int, width: int, stem: Stem) -> None:
        super().__init__()
        multiplier = width / STEM_CHANNELS
        stages = IMAGENET_STAGES if stem == "imagenet" else CIFAR_STAGES
        stem_stride = 1 if stem == "cifar" else 2
        layers: list[nn.Module] = [_convolution(channels, width, kernel=3, stride=stem_stride)]
        inputs = width
        for stage in stages:
            outputs = divisible_channels(stage.channels * multiplier)
            for position in range(stage.depth):
                stride = stage.stride if position == 0 else 1
                layers.append(InvertedResidual(inputs, outputs, stride, stage.expansion))
                inputs = outputs
        last = divisible_channels(LAST_CHANNELS * max(1.0, multiplier))
        layers.append(_convolution(inputs, last, kernel=1))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(last, classes))
        initialise_convolutions(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [batch, classes] of images [batch, channels, height, width]."""
        images = images.contiguous(memory_format=torch.channels_last)  # faster; free if they are so
        logits: Tensor = self.classifier(self.avgpool(self.features(images)))
        return logits


def mobilenet_v2(*, classes: int, channels: int = 3, width: int = 32, stem: Stem = "cifar") -> MobileNetV2:
    """MobileNetV2 of the paper's multiplier `width / 32`."""
    return MobileNetV2(classes=classes, channels=channels, width=width, stem=stem)
