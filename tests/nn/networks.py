"""Networks as other people write them; none of this knows of fedmef."""

from collections import OrderedDict
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def vgg() -> nn.Sequential:
    """One flat nn.Sequential with two hidden linear layers and dropout; its ReLUs are in place."""
    layers: list[nn.Module] = []
    channels = 3
    for width in (8, 16, 0, 16, 0):
        if width == 0:
            layers.append(nn.MaxPool2d(kernel_size=2, stride=2))
            continue
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        channels = width
    layers += [nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    layers += [nn.Linear(4 * channels, 32), nn.BatchNorm1d(32), nn.ReLU(inplace=True), nn.Dropout(0.5)]
    layers += [nn.Linear(32, 32), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(32, 10)]
    return nn.Sequential(*layers)


class PreactBlock(nn.Module):
    """BatchNorm → ReLU → convolution, twice; the shortcut branches off after the first ReLU."""

    def __init__(self, in_planes: int, planes: int, stride: int, rectify: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_planes)
        self.conv1 = nn.Conv2d(in_planes, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.rectify = rectify
        if stride != 1 or in_planes != planes:
            self.shortcut = nn.Conv2d(in_planes, planes, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = self.rectify(self.bn1(x))
        shortcut = self.shortcut(out) if hasattr(self, "shortcut") else x
        out = self.rectify(self.bn2(self.conv1(out)))
        out = self.conv2(out)
        out += shortcut
        return out  # type: ignore[no-any-return]


class PreactResNet(nn.Module):
    """He et al. 2016, in the style of the CIFAR repositories."""

    def __init__(self, rectify: Callable[[], Callable[[Tensor], Tensor]]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 1, 1, bias=False)
        self.blocks = nn.Sequential(
            PreactBlock(8, 8, 1, rectify()),
            PreactBlock(8, 16, 2, rectify()),
            PreactBlock(16, 16, 1, rectify()),
        )
        self.bn = nn.BatchNorm2d(16)
        self.linear = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn(self.blocks(self.stem(x))))
        out = F.avg_pool2d(out, 4)
        logits: Tensor = self.linear(F.adaptive_avg_pool2d(out, 1).view(out.size(0), -1))
        return logits


def preact_resnet() -> nn.Module:
    """With F.relu everywhere."""
    return PreactResNet(lambda: F.relu)


def preact_resnet_in_place() -> nn.Module:
    """With modules that work in place, so that an unguarded swap of BatchNorm overwrites the shortcut."""
    return PreactResNet(lambda: nn.ReLU(inplace=True))


def conv_bn(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(inputs, outputs, (3, 3), (stride, stride), (1, 1), bias=False),
            norm=nn.BatchNorm2d(outputs),
            act=nn.ReLU6(inplace=True),
        )
    )


class Bottleneck(nn.Module):
    """An inverted residual with named parts instead of one Sequential."""

    def __init__(self, inputs: int, outputs: int, stride: int, expand: int = 3) -> None:
        super().__init__()
        hidden = inputs * expand
        self.expand = nn.Conv2d(inputs, hidden, 1, bias=False)
        self.expand_norm = nn.BatchNorm2d(hidden)
        self.depthwise = nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False)
        self.depthwise_norm = nn.BatchNorm2d(hidden)
        self.project = nn.Conv2d(hidden, outputs, 1, bias=False)
        self.project_norm = nn.BatchNorm2d(outputs)
        self.act = nn.ReLU6(inplace=True)  # one module, used twice
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.expand_norm(self.expand(x)))
        y = self.act(self.depthwise_norm(self.depthwise(y)))
        y = self.project_norm(self.project(y))
        return torch.add(x, y) if self.residual else y


class OtherMobileNet(nn.Module):
    """MobileNetV2 with a convolution as its classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 8, 1)
        blocks = [Bottleneck(8, 8, 1), Bottleneck(8, 16, 2), Bottleneck(16, 16, 1)]
        self.blocks = nn.ModuleList(blocks)
        self.head = conv_bn(16, 32, 1)
        self.classifier = nn.Conv2d(32, 10, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        x = self.head(x).mean([2, 3], keepdim=True)
        return torch.flatten(self.classifier(x), 1)


def shared_activation() -> nn.Sequential:
    """One ReLU object that stands in several places."""
    act = nn.ReLU(inplace=True)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        act,
        nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), act),
        nn.AvgPool2d(2),
        nn.Conv2d(8, 16, 3),
        act,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "vgg": vgg,
    "preact_resnet": preact_resnet,
    "preact_resnet_in_place": preact_resnet_in_place,
    "mobilenet": OtherMobileNet,
    "shared_activation": shared_activation,
}


class Wrapped(nn.Module):
    """A small network around one part that may not be convertible."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.part = part
        self.fc = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.part(F.relu(self.norm(self.stem(x))))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


class DataDependent(nn.Module):
    """torch.fx cannot follow a branch on values."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) if x.sum() > 0 else x


class OwnConvolution(nn.Conv2d):
    """A Conv2d that computes something else."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return super().forward(input) * 2


class Unused(nn.Module):
    """Has a layer that forward() forgets."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Conv2d(8, 8, 1)
        self.forgotten = nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.used(x)
        return out


class FunctionalConvolution(nn.Module):
    """Convolves by a function call."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(self.conv(x), torch.ones(8, 8, 1, 1))


class InPlaceMethod(nn.Module):
    """Rectifies with a tensor's own in-place method."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return y.relu_()


class OwnParameter(nn.Module):
    """Has a parameter that is not a layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class OverwrittenShortcut(nn.Module):
    """Counts on an in-place ReLU to rectify the shortcut too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 1)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return torch.add(y, self.act(y))


class OverwrittenByFunction(OverwrittenShortcut):
    """The same with a function."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        F.relu(y, inplace=True)
        return y + 1


class InPlaceFunction(OverwrittenShortcut):
    """Another function that works in place."""

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.conv(x), inplace=True)


class DenseBlock(nn.Module):
    """BatchNorm → ReLU → convolution; the input goes on next to the result."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(F.relu(self.norm(x)))], 1)


class OtherDenseNet(nn.Module):
    """Huang et al. 2017 in small, in the style of the CIFAR repositories."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.first = nn.Sequential(DenseBlock(8, 4), DenseBlock(12, 4))
        self.transition = nn.Conv2d(16, 8, 1)
        self.second = nn.Sequential(DenseBlock(8, 6), DenseBlock(14, 5))
        self.pool = nn.AvgPool2d(3, stride=2, padding=1, ceil_mode=True, count_include_pad=False)
        self.norm = nn.BatchNorm2d(19, affine=False)
        self.linear = nn.Linear(19, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(self.transition(self.first(self.stem(x))), 2)
        x = F.relu(self.norm(self.pool(self.second(x))))
        x = F.avg_pool2d(x, x.size()[3])
        logits: Tensor = self.linear(x.view(x.size(0), -1))
        return logits


def padded_vgg() -> nn.Sequential:
    """Max-pooling with padding and ceil_mode, hidden linear layers with BatchNorm, no dropout."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding="same"),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True),
        nn.Conv2d(8, 16, (3, 5), stride=(1, 2), padding=(1, 0)),
        nn.ReLU6(inplace=True),
        nn.MaxPool2d((2, 3), stride=3, padding=(1, 0), dilation=(2, 1), ceil_mode=True),
        nn.AdaptiveAvgPool2d((2, 1)),
        nn.Flatten(),
        nn.Linear(32, 24),
        nn.BatchNorm1d(24),
        nn.ReLU(),
        nn.Linear(24, 16, bias=False),
        nn.ReLU(),
        nn.Linear(16, 10),
    )


class Inception(nn.Module):
    """Branches with dilation and groups, functional calls, and a layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(8, eps=1e-3)
        self.wide = nn.Conv2d(8, 8, 3, padding=2, dilation=2)
        self.grouped = nn.Conv2d(8, 12, (1, 3), padding=(0, 1), groups=4)
        self.pooled = nn.Conv2d(8, 4, 1)
        self.again = nn.Conv2d(24, 24, 3, padding=1)
        self.network = nn.Linear(24, 10)  # a name that our own classes have too

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        left, middle = F.relu6(self.wide(x)), self.grouped(x).relu()
        right = self.pooled(F.max_pool2d(x, 3, 1, 1))
        y = torch.cat((left, middle, right), dim=-3)
        y = F.relu(self.again(y) + y)
        y = F.relu(torch.add(self.again(y), y))
        y = F.adaptive_avg_pool2d(F.max_pool2d(y, 3, 2, 1, 1, True), (2, 3))
        logits: Tensor = self.network(y.mean((2, 3)))
        return logits


# Networks that can be described as data completely.
DESCRIBED: dict[str, Callable[[], nn.Module]] = {
    "dense_net": OtherDenseNet,
    "padded_vgg": padded_vgg,
    "inception": Inception,
    "preact_resnet": preact_resnet,
    "preact_resnet_in_place": preact_resnet_in_place,
    "mobilenet": OtherMobileNet,
    "shared_activation": shared_activation,
}
