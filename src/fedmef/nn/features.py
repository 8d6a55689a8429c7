"""What a classifier is given, brought to one size: a LayerNorm without parameters, and logits to match.

NSConv with γ = 1 loses half of the variance or more in every layer, so how much is left at the classifier
depends on depth and shape: 1e-1 in a ResNet18, 1e-4 in a MobileNetV2, where nothing but the classifier's bias
learns. Here each image's features are centred and scaled to a root mean square of 1, in every network:

    x̂ = (x − mean(x)) / sqrt(var(x) + ε · max|x|²)        over all features of one image
    logits = s · (W x̂ + b),   s² = ENERGY · classes / features

Without `s` the classifier of a wide network would learn faster than that of a narrow one, and need a smaller
learning rate: a step changes an image's logits in proportion to `s² · features`. The more classes, the larger
a step may be, because the loss curves less: by `p (1 − p)` at probabilities `p` of about `1 / classes`. No
image sees another one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

ENERGY = 0.4  # docs/notes/tuning.md
AVERAGED = 8.0  # what averaging over pixels takes away of a convolution's features
EPSILON = 1e-10
SMALLEST = 1e-30  # where no feature of an image is larger, no gradient passes


def plain_layer_norm(input: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """The normalised images, and what a small change of them is multiplied by."""
    own = tuple(range(1, input.ndim))
    # Squares of small features must not underflow.
    peak = input.abs().amax(own, keepdim=True)
    shown = peak > SMALLEST
    peak = torch.where(shown, peak, 1)
    centered = input / peak
    centered = centered - centered.mean(own, keepdim=True)
    inverse = torch.rsqrt(centered.square().mean(own, keepdim=True) + epsilon)
    return centered * inverse, shown * inverse / peak


class _LayerNorm(torch.autograd.Function):
    """Keeps its output, which the classifier keeps anyway, and one number an image."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, epsilon: float) -> Tensor:
        output, factor = plain_layer_norm(input, epsilon)
        ctx.save_for_backward(output, factor)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        output, factor = ctx.saved_tensors
        own = tuple(range(1, output.ndim))
        along = (gradient * output).mean(own, keepdim=True)
        tangent = gradient - gradient.mean(own, keepdim=True) - output * along
        return tangent * factor, None


class _Scale(torch.autograd.Function):
    """Keeps nothing; PyTorch's product keeps its factor as a tensor."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return input * factor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


def layer_norm(input: Tensor, epsilon: float = EPSILON) -> Tensor:
    """Each image's values [n, ...], centred and scaled to a root mean square of 1."""
    if not (torch.is_grad_enabled() and input.requires_grad):
        return plain_layer_norm(input, epsilon)[0]
    output: Tensor = _LayerNorm.apply(input, epsilon)  # type: ignore[no-untyped-call]
    return output


def scale(input: Tensor, factor: float) -> Tensor:
    """The input times a constant."""
    output: Tensor = _Scale.apply(input, factor)  # type: ignore[no-untyped-call]
    return output


@dataclass(frozen=True)
class FeatureNorm:
    """What is done to the input and the output of a classifier; `scale` is `s`."""

    scale: float

    def before(self, layer: nn.Module, inputs: tuple[Tensor]) -> Tensor:
        """A hook: the normalised input."""
        return layer_norm(*inputs)

    def after(self, layer: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        """A hook: the scaled output."""
        return scale(output, self.scale)


def normalize_features(classifier: nn.Module, shape: Sequence[int]) -> None:
    """Let a layer normalise what it is given; it keeps its class, its parameters and their names.

    Hooks do it, so nothing else of the network changes. `shape` is that of its dense weight, classes first.
    """
    energy = ENERGY * (AVERAGED if len(shape) == 4 else 1)
    norm = FeatureNorm(math.sqrt(energy * shape[0] / math.prod(shape[1:])))
    classifier.register_forward_pre_hook(norm.before)
    classifier.register_forward_hook(norm.after)


def feature_norm(layer: nn.Module) -> FeatureNorm | None:
    """The normalisation of a layer's features, if it has one."""
    owners = (getattr(hook, "__self__", None) for hook in layer._forward_pre_hooks.values())
    return next((owner for owner in owners if isinstance(owner, FeatureNorm)), None)


def remove_feature_norms(model: nn.Module) -> None:
    """Take them away again."""
    for layer in model.modules():
        for hooks in (layer._forward_pre_hooks, layer._forward_hooks):
            ours = [
                key for key, hook in hooks.items() if isinstance(getattr(hook, "__self__", None), FeatureNorm)
            ]
            for key in ours:
                del hooks[key]
