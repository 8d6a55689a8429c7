"""How many devices' tensors become one: their weighted mean, or a robust mean that few liars cannot move.

Robust means (Yin et al. 2018) work on each coordinate of its own, here on each active weight, and count every
device alike: a sample count is as easily invented as an update.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

if TYPE_CHECKING:
    from fedmef.methods.base import Update

Aggregation = Literal["mean", "median", "trimmed_mean"]
Combine = Callable[[Sequence[Tensor], Sequence[float]], Tensor]

COLUMNS = 2**18  # sorted at a time, so that memory does not grow with the layer


def combine_by(aggregation: Aggregation, trim: float) -> Combine:
    """The function of this name: tensors and the devices' weights → one tensor."""
    if aggregation == "mean":
        return weighted_mean
    return partial(_without_extremes, trim=0.5 if aggregation == "median" else trim)


def weighted_mean(tensors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """`Σ w_k x_k`, added up in double precision and in the order given."""
    total = torch.zeros_like(tensors[0], dtype=torch.float64)
    for tensor, weight in zip(tensors, weights, strict=True):
        total.add_(tensor, alpha=weight)
    return total.to(tensors[0].dtype)


def _without_extremes(tensors: Sequence[Tensor], weights: Sequence[float], trim: float) -> Tensor:
    """The mean of each coordinate without `trim` of its values at either end; the median for one half.

    A part of a device counts as a whole one: rounded down, the mean of few devices would bear no liar.
    """
    count = len(tensors)
    cut = min(math.ceil(trim * count - 1e-6), (count - 1) // 2)
    flat = [tensor.reshape(-1) for tensor in tensors]
    parts = [
        torch.stack(columns).sort(0).values[cut : count - cut].double().mean(0)
        for columns in zip(*(torch.split(tensor, COLUMNS) for tensor in flat), strict=True)
    ]
    return torch.cat(parts).to(tensors[0].dtype).reshape(tensors[0].shape)


def difference_norm(weights: Mapping[str, Tensor], sent: Mapping[str, Tensor]) -> float:
    """The Euclidean norm of what training changed, over all tensors together."""
    squares = sum(
        float((weights[name].double() - tensor.detach().cpu().double()).square().sum())
        for name, tensor in sent.items()
    )
    return math.sqrt(squares)


def clip_share(update: "Update", sent: Mapping[str, Tensor], largest: float) -> float:
    """What to multiply an update's difference by, so that its norm is at most this."""
    norm = difference_norm(update.weights, sent)
    return 1.0 if norm <= largest else largest / norm


def clipped(update: "Update", sent: Mapping[str, Tensor], largest: float) -> "Update":
    """The update with what it changed scaled down to this norm, up to the rounding of its weights."""
    share = clip_share(update, sent, largest)
    if share == 1:
        return update
    weights = {}
    for name, tensor in sent.items():
        before, after = tensor.detach().cpu().double(), update.weights[name]
        weights[name] = (before + share * (after.double() - before)).to(after.dtype)
    return replace(update, weights=weights)
