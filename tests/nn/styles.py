"""Small networks in many people's styles, each with a habit that a converter may stumble over.

None of this knows of fedmef. In those of `RELU` nothing but layers, BatchNorm, ReLU, ReLU6, pooling, sums and
gates keeps much for the backward pass.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def conv(inputs: int, outputs: int, size: int = 3, stride: int = 1, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False, **options)


def head(features: int, classes: int = 10) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, classes))


def unit(inputs: int, outputs: int, act: Callable[[], nn.Module] = nn.ReLU, **options: Any) -> nn.Sequential:
    return nn.Sequential(conv(inputs, outputs, **options), nn.BatchNorm2d(outputs), act())


def stack(make: Callable[[int, int], nn.Module], act: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """A stem, blocks of one kind, and a classifier."""
    return nn.Sequential(unit(3, 16, act), make(16, 16), make(16, 16), head(16))


class NormReLU(nn.BatchNorm2d):
    """BatchNorm and ReLU in one class."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.relu(super().forward(input))


class NormAct(nn.BatchNorm2d):
    """As timm writes it: the code of BatchNorm, then dropout and an activation of its own."""

    def __init__(self, features: int, act: nn.Module) -> None:
        super().__init__(features)
        self.drop, self.act = nn.Identity(), act

    def forward(self, x: Any) -> Any:
        torch._assert(x.ndim == 4, "expected 4D input")  # type: ignore[no-untyped-call]
        factor = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        training = self.training or (self.running_mean is None and self.running_var is None)
        x = F.batch_norm(
            x,
            self.running_mean if not self.training or self.track_running_stats else None,
            self.running_var if not self.training or self.track_running_stats else None,
            self.weight,
            self.bias,
            training,
            factor,
            self.eps,
        )
        return self.act(self.drop(x))


def norm_and_relu() -> nn.Module:
    return stack(lambda i, o: nn.Sequential(conv(i, o), NormReLU(o)))


def norm_and_act() -> nn.Module:
    return stack(lambda i, o: nn.Sequential(conv(i, o), NormAct(o, nn.ReLU(inplace=True))))


def norm_and_silu() -> nn.Module:
    return stack(lambda i, o: nn.Sequential(conv(i, o), NormAct(o, nn.SiLU(inplace=True))), nn.SiLU)


class Changes(nn.Module):
    """Changes a BatchNorm's output in place, and reads its input again."""

    def __init__(self, channels: int, change: Callable[[Any], Any]) -> None:
        super().__init__()
        self.conv, self.bn, self.change = conv(channels, channels), nn.BatchNorm2d(channels), change

    def forward(self, x: Any) -> Any:
        x = self.conv(x)
        h = self.change(self.bn(x))
        return F.relu(h + x)


def times(h: Any) -> Any:
    h *= 0.5
    return h


def plus(h: Any) -> Any:
    h += 1
    return h


def through_a_view(h: Any) -> Any:
    h.view(h.size(0), -1).mul_(0.5)
    return h


def one_channel(h: Any) -> Any:
    h[:, 0] = 0
    return h


def changing(change: Callable[[Any], Any]) -> Callable[[], nn.Module]:
    return lambda: stack(lambda i, o: Changes(i, change))


class ChangesInput(Changes):
    """Changes what the BatchNorm read, after it was read."""

    def forward(self, x: Any) -> Any:
        x = self.conv(x)
        h = self.bn(x)
        x.add_(1)
        return F.relu(h + x)


class Body(nn.Module):
    """The beginning of the networks below."""

    def __init__(self, width: int = 16, act: Callable[[], nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.stem, self.block = unit(3, width, act), unit(width, width, act)
        self.last_block, self.fc = unit(width, width, act), nn.Linear(width, 10)


class TwoHeads(Body):
    """Two classifiers of one body."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 4))

    def forward(self, x: Any) -> Any:
        x = self.last_block(self.block(self.stem(x))).mean((2, 3))
        return self.other(x), self.fc(x).softmax(-1)


class AuxiliaryHead(Body):
    """A second classifier while it is trained, as GoogLeNet has."""

    def __init__(self) -> None:
        super().__init__()
        self.aux = head(16)

    def forward(self, x: Any) -> Any:
        x = self.block(self.stem(x))
        logits = self.fc(self.last_block(x).mean((2, 3)))
        return (logits, self.aux(x)) if self.training else logits


def lazy() -> nn.Module:
    return nn.Sequential(
        nn.LazyConv2d(16, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.LazyConv2d(16, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(10),
    )  # fmt: skip


class MadeAtFirst(Body):
    """Makes its classifier when it sees the first images."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier: nn.Module | None = None

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(self.last_block(self.block(self.stem(x))), 2).flatten(1)
        if self.classifier is None:
            self.classifier = nn.Linear(x.shape[1], 10)
        return self.classifier(x)


class Asserts(Body):
    """Checks shapes."""

    def forward(self, x: Any) -> Any:
        assert x.dim() == 4, f"got {x.dim()} dimensions"
        batch, channels, height, width = x.shape
        if channels != 3 or height % 2 or width != height:
            raise ValueError("wrong images")
        x = self.last_block(self.block(self.stem(x)))
        assert x.shape == (batch, 16, height, width)
        return self.fc(x.mean((2, 3)))


class SplitUnit(nn.Module):
    """A part of the channels passes by; how many is computed from the shape."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.branch = unit(channels // 2, channels // 2)

    def forward(self, x: Any) -> Any:
        kept = int(x.size(1) * 0.5)
        left, right = x[:, :kept], x[:, kept:]
        return torch.cat([left, self.branch(right)], 1)


class Shuffle(nn.Module):
    """Channels of two groups in turn, as in ShuffleNet."""

    def forward(self, x: Any) -> Any:
        batch, channels, height, width = x.size()
        x = x.view(batch, 2, channels // 2, height, width).transpose(1, 2)
        return x.contiguous().view(batch, -1, height, width)


def shuffled() -> nn.Module:
    return stack(lambda i, o: nn.Sequential(SplitUnit(i), Shuffle()))


class Defaults(Body):
    """Arguments of forward() with defaults that decide."""

    def forward(self, x: Any, scale: float = 1.0, features: bool = False, pool: str = "mean") -> Any:
        x = self.last_block(self.block(self.stem(x))) * scale
        if features:
            return x
        x = x.mean((2, 3)) if pool == "mean" else x.amax((2, 3))
        return self.fc(x)


class MadeInForward(Body):
    """Makes modules without weights where it needs them."""

    def forward(self, x: Any) -> Any:
        x = nn.ReLU()(self.stem[1](self.stem[0](x)))
        x = nn.MaxPool2d(2)(nn.ReLU(inplace=True)(self.block[0](x)))
        return self.fc(nn.Flatten()(nn.AdaptiveAvgPool2d(1)(self.last_block(x))))


class Functions(Body):
    """Everything by functions, one convolution and one BatchNorm too."""

    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.Parameter(torch.randn(16, 16, 1, 1) / 4)

    def forward(self, x: Any) -> Any:
        x = F.relu(F.conv2d(F.relu(self.stem[0](x)), self.filters))
        x = F.relu(F.batch_norm(self.block[0](x), None, None, training=True))
        x = F.dropout(F.max_pool2d(self.last_block(x), 2), 0.1, self.training)
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class ReadsWeight(Body):
    """Reads a layer's weight itself."""

    def forward(self, x: Any) -> Any:
        first: Any = self.stem[0]
        second: Any = self.block[0]
        x = self.stem(x.to(first.weight.dtype))
        x = x + F.conv2d(x, second.weight, padding=1)
        return self.fc(self.last_block(self.block(x)).mean((2, 3)))


class ConvNeXt(nn.Module):
    """LayerNorm over channels, GELU, and a scale of its own."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm, self.act = nn.LayerNorm(channels, eps=1e-6), nn.GELU()
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(torch.full((channels,), 0.5))

    def forward(self, x: Any) -> Any:
        y = self.dwconv(x).permute(0, 2, 3, 1)
        y = self.gamma * self.down(self.act(self.up(self.norm(y))))
        return x + y.permute(0, 3, 1, 2)


class UNet(nn.Module):
    """Down and up again with a transposed convolution; a map of classes comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.down = unit(3, 16), unit(16, 32, stride=2)
        self.up, self.merge = nn.ConvTranspose2d(32, 16, 2, 2), unit(32, 16)
        self.out = nn.Conv2d(16, 5, 1)

    def forward(self, x: Any) -> Any:
        high = self.enter(x)
        low = F.interpolate(self.down(high), scale_factor=1.0)
        return self.out(self.merge(torch.cat([high, self.up(low)], dim=1)))


class LinearGate(nn.Module):
    """Squeeze-and-excitation of linear layers, with expand_as."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv, self.bn, self.pool = (
            conv(channels, channels),
            nn.BatchNorm2d(channels),
            nn.AdaptiveAvgPool2d(1),
        )
        self.fc = nn.Sequential(
            nn.Linear(channels, 4), nn.ReLU(inplace=True), nn.Linear(4, channels), nn.Sigmoid()
        )

    def forward(self, x: Any) -> Any:
        y = self.bn(self.conv(x))
        b, c, _, _ = y.size()
        gate = self.fc(self.pool(y).view(b, c)).view(b, c, 1, 1)
        return F.relu(x + y * gate.expand_as(y))


class ConvolutionalGate(nn.Module):
    """The same with 1x1 convolutions and a mean."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv, self.bn = conv(channels, channels), nn.BatchNorm2d(channels)
        self.reduce, self.expand = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)

    def forward(self, x: Any) -> Any:
        y = self.bn(self.conv(x))
        s = y.mean((2, 3), keepdim=True)
        return F.relu(x + torch.sigmoid(self.expand(F.relu(self.reduce(s)))) * y)


class ChannelAttention(nn.Module):
    """A 1-d convolution over the channels (ECA)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body, self.attend = unit(channels, channels), nn.Conv1d(1, 1, 3, padding=1, bias=False)

    def forward(self, x: Any) -> Any:
        x = self.body(x)
        y = self.attend(x.mean((2, 3)).view(x.shape[0], 1, -1))
        return x * y.view(x.shape[0], -1, 1, 1).sigmoid()


class SpatialAttention(nn.Module):
    """CBAM's: where to look, from the mean and the maximum of the channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body, self.look = unit(channels, channels), nn.Conv2d(2, 1, 7, padding=3)

    def forward(self, x: Any) -> Any:
        x = self.body(x)
        seen = torch.cat([x.mean(1, keepdim=True), x.max(dim=1, keepdim=True).values], 1)
        return x * torch.sigmoid(self.look(seen))


class Rezero(nn.Module):
    """A residual block with a learned factor and bias."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = conv(channels, channels), conv(channels, channels)
        self.alpha, self.shift = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))

    def forward(self, x: Any) -> Any:
        return F.relu(x + self.alpha * self.second(F.relu(self.first(x) + self.shift)))


class InPlaceMethods(nn.Module):
    """Methods that end with an underscore, and a shortcut that counts on them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(channels, channels), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = conv(channels, channels), nn.BatchNorm2d(channels)

    def forward(self, x: Any) -> Any:
        y = self.bn1(self.conv1(x)).relu_()
        y = self.bn2(self.conv2(y))
        rectified = F.relu(y, inplace=True)
        return torch.relu_(rectified + x) + y


class _Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        gate = torch.sigmoid(x)
        return gradient * gate * (1 + x * (1 - gate))


class MemoryEfficientSwish(nn.Module):
    """As efficientnet_pytorch has it."""

    def forward(self, x: Any) -> Any:
        return _Swish.apply(x)  # type: ignore[no-untyped-call]


class Branching(Body):
    """Does something else with bright images."""

    def forward(self, x: Any) -> Any:
        x = self.block(self.stem(x))
        if x.mean() > 0:
            x = self.last_block(x)
        return self.fc(x.mean((2, 3)))


class DictOutput(Body):
    """Gives a dict, and takes the images by name as well."""

    def forward(self, images: Any, **options: Any) -> Any:
        features = self.last_block(self.block(self.stem(images)))
        return {"logits": self.fc(features.mean((2, 3))), "size": list(features.shape[2:])}


class TwoInputs(Body):
    """Compares two pictures with one body."""

    def forward(self, left: Any, right: Any) -> Any:
        both = [self.last_block(self.block(self.stem(x))).mean((2, 3)) for x in (left, right)]
        return self.fc(torch.abs(both[0] - both[1]))


class DropPath(nn.Module):
    """Leaves the branch out now and then, image by image."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Any) -> Any:
        y = self.branch(x)
        if not self.training:
            return x + y
        keep = torch.rand((x.shape[0],) + (1,) * (x.ndim - 1), device=x.device) < 0.8
        return x + y.div(0.8) * keep


class SharedWeights(Body):
    """Two modules with one weight, and one module that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.twin = conv(16, 16)
        self.again = conv(16, 16)
        self.twin.weight = self.again.weight

    def forward(self, x: Any) -> Any:
        x = F.relu(self.again(F.relu(self.twin(self.stem(x)))))
        return self.fc(self.last_block(self.block(self.block(x))).mean((2, 3)))


class Checkpointed(Body):
    """Recomputes a block in the backward pass."""

    def forward(self, x: Any) -> Any:
        x = checkpoint(self.block, self.stem(x), use_reentrant=False)
        return self.fc(self.last_block(x).mean((2, 3)))


class Listed(nn.Module):
    """Blocks in lists and dicts, found by number and name."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([conv(3, 16), *(conv(16, 16) for _ in range(3))])
        self.norms = nn.ModuleDict({f"bn{number}": nn.BatchNorm2d(16) for number in range(4)})
        self.heads = nn.ModuleDict({"a": nn.Linear(16, 10)})

    def forward(self, x: Any, task: str = "a") -> Any:
        for number, layer in enumerate(self.convs):
            y = F.relu(self.norms[f"bn{number}"](layer(x)))
            x = y if number == 0 else x + y
        return self.heads[task](x.mean((2, 3)))


class BothSigns(nn.Module):
    """CReLU: what is positive, and what is negative."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv, self.bn = conv(channels, channels // 2), nn.BatchNorm2d(channels // 2)

    def forward(self, x: Any) -> Any:
        y = self.bn(self.conv(x))
        return F.relu(torch.cat([y, -y], 1))


class Preactivated(nn.Module):
    """BatchNorm and an in-place ReLU first; the shortcut is read after them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bn1, self.relu, self.conv1 = (
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            conv(channels, channels),
        )
        self.bn2, self.conv2 = nn.BatchNorm2d(channels), conv(channels, channels)

    def forward(self, x: Any) -> Any:
        y = self.conv1(self.relu(self.bn1(x)))
        y = self.conv2(self.relu(self.bn2(y)))
        y += x
        return y


class Standardized(nn.Conv2d):
    """Weight standardisation: a convolution with a forward() of its own."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(input, weight / (weight.std((1, 2, 3), keepdim=True) + 1e-5), self.bias, padding=1)


class SamePadding(nn.Conv2d):
    """Pads like TensorFlow, more at one side than at the other."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        height, width = input.shape[-2:]
        sides = []
        for size, kernel, stride in ((width, 3, self.stride[1]), (height, 3, self.stride[0])):
            missing = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
            sides += [missing // 2, missing - missing // 2]
        return F.conv2d(F.pad(input, sides), self.weight, self.bias, self.stride)


class Isinstance(Body):
    """Asks what it was given, and answers single images too."""

    def forward(self, x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            raise TypeError("not a tensor")
        single = x.dim() == 3
        x = self.last_block(self.block(self.stem(x[None] if single else x)))
        logits = self.fc(x.view(len(x), 16, -1).mean(-1))
        return logits[0] if single else logits


class Pyramid(Body):
    """Sizes computed with Python's own arithmetic."""

    def forward(self, x: Any) -> Any:
        x = self.block(self.stem(x))
        levels: Any = []
        for level in range(1, 3):
            size = math.ceil(x.shape[-1] / level)
            levels.append(F.adaptive_avg_pool2d(F.max_pool2d(x, size, size), 1))
        return self.fc(self.last_block(x).mean((2, 3)) + (levels[0] + levels[1]).flatten(1))


class Attention(nn.Module):
    """Attention over pixels, with PyTorch's own module."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body, self.attend = (
            unit(channels, channels),
            nn.MultiheadAttention(channels, 2, batch_first=True),
        )

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(self.body(x), 4)
        tokens = x.flatten(2).transpose(1, 2)
        mixed, _ = self.attend(tokens, tokens, tokens, need_weights=False)
        return x + mixed.transpose(1, 2).reshape(x.shape)


class SqueezeNet(nn.Module):
    """The classifier is a convolution with a ReLU after it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.squeeze = nn.Conv2d(3, 32, 3, 2), nn.Conv2d(32, 8, 1)
        self.one, self.three = nn.Conv2d(8, 16, 1), nn.Conv2d(8, 16, 3, padding=1)
        self.classifier = nn.Conv2d(32, 10, 1)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.squeeze(F.max_pool2d(F.relu(self.stem(x)), 3, 2, ceil_mode=True)))
        x = torch.cat([F.relu(self.one(x)), F.relu(self.three(x))], 1)
        return F.adaptive_avg_pool2d(F.relu(self.classifier(x)), 1).flatten(1)


def dropout_everywhere() -> nn.Module:
    return nn.Sequential(
        unit(3, 32), nn.Dropout2d(0.2), unit(32, 32), nn.MaxPool2d(2), nn.Dropout(0.3, inplace=True),
        nn.Flatten(), nn.Linear(32 * 64, 64), nn.ReLU(True), nn.Dropout(), nn.Linear(64, 10),
    )  # fmt: skip


def sync_norm() -> nn.Module:
    return nn.Sequential(unit(3, 16), conv(16, 16), nn.SyncBatchNorm(16), nn.ReLU(), head(16)).eval()


def activated(act: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: stack(lambda i, o: unit(i, o, act), act)


def of(kind: Callable[[int], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: stack(lambda i, o: kind(i))


def parametrised(how: Callable[[nn.Module], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: stack(lambda i, o: nn.Sequential(how(conv(i, o)), nn.ReLU(), conv(o, o), nn.ReLU()))


RELU: dict[str, Callable[[], nn.Module]] = {
    "norm and ReLU in one": norm_and_relu,
    "norm and activation in one": norm_and_act,
    "in place: times": changing(times),
    "in place: plus": changing(plus),
    "in place: a view": changing(through_a_view),
    "in place: one channel": changing(one_channel),
    "in place: the norm's input": of(lambda channels: ChangesInput(channels, times)),
    "in place: methods": of(InPlaceMethods),
    "preactivated, in place": of(Preactivated),
    "two heads": TwoHeads,
    "auxiliary head": AuxiliaryHead,
    "lazy modules": lazy,
    "a layer made at first": MadeAtFirst,
    "asserts on shapes": Asserts,
    "channels split and shuffled": shuffled,
    "arguments with defaults": Defaults,
    "modules made in forward": MadeInForward,
    "linear gates": of(LinearGate),
    "convolutional gates": of(ConvolutionalGate),
    "channel attention": of(ChannelAttention),
    "spatial attention": of(SpatialAttention),
    "parameters of a block": of(Rezero),
    "a branch on values": Branching,
    "a dict comes out": DictOutput,
    "two inputs": TwoInputs,
    "stochastic depth": of(lambda channels: DropPath(unit(channels, channels))),
    "lists and dicts": Listed,
    "both signs": of(BothSigns),
    "isinstance": Isinstance,
    "a pyramid": Pyramid,
    "dropout": dropout_everywhere,
    "ReLU6": activated(nn.ReLU6),
}

OTHERS: dict[str, Callable[[], nn.Module]] = {
    "in place: clamp_": changing(lambda h: h.clamp_(-0.5, 0.5)),
    "functions": Functions,
    "a weight that is read": ReadsWeight,
    "U-Net": UNet,
    "shared weights": SharedWeights,
    "checkpointed": Checkpointed,
    "a convolution last, with ReLU": SqueezeNet,
    "norm and SiLU in one": norm_and_silu,
    "SiLU": activated(nn.SiLU),
    "GELU": activated(nn.GELU),
    "Hardswish": activated(lambda: nn.Hardswish(inplace=True)),
    "LeakyReLU": activated(lambda: nn.LeakyReLU(0.1, inplace=True)),
    "ELU": activated(nn.ELU),
    "Mish": activated(nn.Mish),
    "PReLU": activated(nn.PReLU),
    "a swish of its own": activated(MemoryEfficientSwish),
    "GroupNorm": of(
        lambda channels: nn.Sequential(conv(channels, channels), nn.GroupNorm(4, channels), nn.ReLU())
    ),
    "InstanceNorm": of(
        lambda channels: nn.Sequential(
            conv(channels, channels), nn.InstanceNorm2d(channels, affine=True), nn.ReLU()
        )
    ),
    "SyncBatchNorm": sync_norm,
    "ConvNeXt": of(ConvNeXt),
    "weight norm": parametrised(nn.utils.parametrizations.weight_norm),
    "spectral norm": parametrised(nn.utils.parametrizations.spectral_norm),
    "nothing but weight standardisation": of(lambda channels: Standardized(channels, channels, 3)),
    "weight standardisation": of(
        lambda channels: nn.Sequential(Standardized(channels, channels, 3), unit(channels, channels))
    ),
    "padding as in TensorFlow": of(
        lambda channels: nn.Sequential(
            SamePadding(channels, channels, 3, 1), nn.BatchNorm2d(channels), nn.ReLU()
        )
    ),
    "reflecting padding": of(
        lambda channels: nn.Sequential(
            conv(channels, channels, padding_mode="reflect"), unit(channels, channels)
        )
    ),
    "attention over pixels": of(Attention),
}

STYLES = RELU | OTHERS


def example_for(name: str) -> tuple[Tensor, ...]:
    """Images that a network takes."""
    random = torch.Generator().manual_seed(0)
    count = 2 if name == "two inputs" else 1
    return tuple(torch.randn(4, 3, 16, 16, generator=random) for _ in range(count))


def build_style(name: str) -> nn.Module:
    torch.manual_seed(0)
    return STYLES[name]()
