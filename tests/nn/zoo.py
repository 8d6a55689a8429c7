"""Networks of all kinds of shapes, small: NSConv must keep the signal in each."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmef import sparsify
from fedmef.models import build_model


def conv(inputs: int, outputs: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution, BatchNorm, ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


def ended(*body: nn.Module, features: int, classes: int = 10) -> nn.Sequential:
    """A network with the usual end: pooled features, a linear classifier."""
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, classes))


class Residual(nn.Module):
    """Adds what its branch computes; `shortcut` fits the shapes to each other."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module | None = None, after: bool = True) -> None:
        super().__init__()
        self.branch, self.shortcut = branch, shortcut or nn.Identity()
        self.relu = nn.ReLU() if after else nn.Identity()

    def forward(self, values: Tensor) -> Tensor:
        result: Tensor = self.relu(self.branch(values) + self.shortcut(values))
        return result


class Branches(nn.Module):
    """Several views of one input, channels after channels."""

    def __init__(self, *branches: nn.Module, keep: bool = False) -> None:
        super().__init__()
        self.branches, self.keep = nn.ModuleList(branches), keep

    def forward(self, values: Tensor) -> Tensor:
        results = [branch(values) for branch in self.branches]
        return torch.cat([values, *results] if self.keep else results, 1)


class SqueezeExcite(nn.Module):
    """Channels weighted by what the whole image looks like."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.down, self.relu, self.up = nn.Conv2d(channels, 8, 1), nn.ReLU(), nn.Conv2d(8, channels, 1)
        self.gate = nn.Sigmoid()

    def forward(self, values: Tensor) -> Tensor:
        result: Tensor = values * self.gate(self.up(self.relu(self.down(self.pool(values)))))
        return result


def linear_conv(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs)
    )


def plain(depth: int, width: int) -> nn.Module:
    return ended(conv(3, width, stride=2), *(conv(width, width) for _ in range(depth)), features=width)


def vgg() -> nn.Module:
    """With biases, max pooling and a hidden linear layer, without BatchNorm."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 4, 64), nn.ReLU(), nn.Linear(64, 10))


def residual(blocks: int, width: int = 16) -> nn.Module:
    body = [Residual(nn.Sequential(conv(width, width), linear_conv(width, width))) for _ in range(blocks)]
    return ended(conv(3, width, stride=2), *body, features=width)


def preactivated(blocks: int, width: int = 16) -> nn.Module:
    def branch() -> nn.Module:
        return nn.Sequential(
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
        )

    body = [Residual(branch(), after=False) for _ in range(blocks)]
    return ended(conv(3, width, stride=2), *body, nn.BatchNorm2d(width), nn.ReLU(), features=width)


def bottlenecks(blocks: int = 4, width: int = 32) -> nn.Module:
    body = [
        Residual(nn.Sequential(conv(width, 8, 1), conv(8, 8), linear_conv(8, width, 1)))
        for _ in range(blocks)
    ]
    return ended(conv(3, width, stride=2), *body, features=width)


def separable(depth: int, width: int = 32) -> nn.Module:
    """Depthwise, then pointwise, as MobileNetV1."""
    body = [nn.Sequential(conv(width, width, groups=width), conv(width, width, 1)) for _ in range(depth)]
    return ended(conv(3, width, stride=2), *body, features=width)


def inverted(blocks: int, width: int = 16) -> nn.Module:
    def block() -> nn.Module:
        wide = 4 * width
        branch = nn.Sequential(
            conv(width, wide, 1), conv(wide, wide, groups=wide), linear_conv(wide, width, 1)
        )
        return Residual(branch, after=False)

    body = [block() for _ in range(blocks)]
    return ended(conv(3, width, stride=2), *body, conv(width, 4 * width, 1), features=4 * width)


def excited(blocks: int = 4, width: int = 32) -> nn.Module:
    body = [
        Residual(nn.Sequential(conv(width, width), linear_conv(width, width), SqueezeExcite(width)))
        for _ in range(blocks)
    ]
    return ended(conv(3, width, stride=2), *body, features=width)


def dense(blocks: int = 6, growth: int = 12) -> nn.Module:
    """Each layer sees all before it, as DenseNet."""
    body = [Branches(conv(24 + growth * number, growth), keep=True) for number in range(blocks)]
    return ended(conv(3, 24, stride=2), *body, features=24 + growth * blocks)


def inception(blocks: int = 3) -> nn.Module:
    def block() -> nn.Module:
        return Branches(
            conv(48, 12, 1),
            nn.Sequential(conv(48, 12, 1), conv(12, 12)),
            nn.Sequential(conv(48, 12, 1), conv(12, 12), conv(12, 12)),
            nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(48, 12, 1)),
        )

    return ended(conv(3, 48, stride=2), *(block() for _ in range(blocks)), features=48)


def squeezed(blocks: int = 4) -> nn.Module:
    """Fire modules with biases and without BatchNorm, and a convolution as the classifier (SqueezeNet)."""

    def fire(inputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, 16, 1),
            nn.ReLU(),
            Branches(
                nn.Sequential(nn.Conv2d(16, 32, 1), nn.ReLU()),
                nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()),
            ),
        )

    stem = nn.Sequential(nn.Conv2d(3, 64, 3, 2, 1), nn.ReLU())
    body = [fire(64) for _ in range(blocks)]
    return nn.Sequential(stem, *body, nn.Conv2d(64, 10, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def grouped(blocks: int = 4, width: int = 32) -> nn.Module:
    """Grouped convolutions in bottlenecks, as ResNeXt."""
    body = [
        Residual(
            nn.Sequential(conv(width, width, 1), conv(width, width, groups=4), linear_conv(width, width, 1))
        )
        for _ in range(blocks)
    ]
    return ended(conv(3, width, stride=2), *body, features=width)


def activated(kind: Callable[[], nn.Module], depth: int = 6, width: int = 32) -> nn.Module:
    body = [nn.Sequential(linear_conv(width, width), kind()) for _ in range(depth)]
    return ended(conv(3, width, stride=2), *body, features=width)


def staged(width: int = 8) -> nn.Module:
    """Strided stages with 1x1 shortcuts."""

    def stage(inputs: int, outputs: int) -> nn.Module:
        branch = nn.Sequential(conv(inputs, outputs, stride=2), linear_conv(outputs, outputs))
        return Residual(branch, linear_conv(inputs, outputs, 1, 2))

    body = [stage(width, 2 * width), stage(2 * width, 4 * width), stage(4 * width, 8 * width)]
    return ended(conv(3, width), *body, features=8 * width)


ARCHITECTURES: dict[str, Callable[[], nn.Module]] = {
    "small_cnn": lambda: build_model("small_cnn", classes=10, channels=3, width=16, seed=0),
    "resnet18": lambda: build_model("resnet18", classes=10, channels=3, width=16, seed=0),
    "resnet34": lambda: build_model("resnet34", classes=10, channels=3, width=8, seed=0),
    "resnet50": lambda: build_model("resnet50", classes=10, channels=3, width=8, seed=0),
    "mobilenet_v2": lambda: build_model("mobilenet_v2", classes=10, channels=3, width=16, seed=0),
    "plain 4": lambda: plain(4, 32),
    "plain 12": lambda: plain(12, 32),
    "plain 30, very deep": lambda: plain(30, 16),
    "plain, very narrow": lambda: plain(6, 8),
    "plain, wide": lambda: plain(4, 128),
    "vgg, with biases": vgg,
    "residual 3": lambda: residual(3),
    "residual 16, deep": lambda: residual(16),
    "residual, strided": staged,
    "residual, preactivated": lambda: preactivated(6),
    "bottleneck": bottlenecks,
    "grouped bottleneck": grouped,
    "depthwise separable": lambda: separable(5),
    "depthwise separable, deep": lambda: separable(12),
    "inverted residual": lambda: inverted(4),
    "inverted residual, deep": lambda: inverted(12),
    "squeeze and excitation": excited,
    "dense concatenation": dense,
    "inception": inception,
    "squeezed, convolutional classifier": squeezed,
    "SiLU": lambda: activated(nn.SiLU),
    "LeakyReLU": lambda: activated(nn.LeakyReLU),
    "Hardswish": lambda: activated(nn.Hardswish),
    "ReLU6": lambda: activated(nn.ReLU6),
}


@dataclass(frozen=True)
class Seen:
    """What a network does with one batch; gradients are over the median of all layers."""

    features: float
    smallest_gradient: float
    largest_gradient: float
    loss: float


def one_batch() -> tuple[Tensor, Tensor]:
    """Smooth images with some noise, and labels that have nothing to do with them."""
    generator = torch.Generator().manual_seed(0)
    smooth = F.interpolate(torch.randn(32, 3, 4, 4, generator=generator), 16, mode="bilinear")
    images = smooth + 0.3 * torch.randn(32, 3, 16, 16, generator=generator)
    return images / images.std(), torch.randint(0, 10, (32,), generator=generator)


def constant_loss() -> float:
    """What training nothing but the classifier's bias ends at."""
    shares = torch.bincount(one_batch()[1]) / 32
    return float(-(shares * shares.clamp(min=1e-9).log()).sum())


def look(name: str, sparsity: float, steps: int = 60, rate: float = 1.0) -> Seen:
    """Train a network on one batch."""
    torch.manual_seed(0)
    model = sparsify(ARCHITECTURES[name](), sparsity=sparsity, normalize=True, activation_sparsity=0.9)
    images, labels = one_batch()
    seen: list[float] = []
    classifier = [layer for layer in model.modules() if isinstance(layer, nn.Linear | nn.Conv2d)][-1]
    classifier.register_forward_pre_hook(
        lambda _, inputs: seen.append(float(inputs[0].detach().square().mean().sqrt()))
    )
    norms: list[float] = []
    for _ in range(steps):
        model.zero_grad()
        F.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
        norms = norms or [
            float(parameter.grad.norm())
            for name, parameter in model.named_parameters()
            if parameter.grad is not None and name.endswith(("values", "weight"))
        ]
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(parameter.grad, alpha=rate)
    with torch.no_grad():
        loss = float(F.cross_entropy(model(images), labels))
    return Seen(seen[0], min(norms) / median(norms), max(norms) / median(norms), loss)
