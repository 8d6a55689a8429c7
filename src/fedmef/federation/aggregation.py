"""How the arrays of many devices become one: their weighted mean, or a robust one.

Robust means (Yin et al. 2018, https://arxiv.org/abs/1803.01498) work on each coordinate independently, here
on each active weight, and count every device alike: a sample count is as easily invented as an update.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from fedmef.experiment.settings import Aggregation
from fedmef.methods.base import Combine
from fedmef.sparsity.arrays import Array
from fedmef.wire.update import Update

COLUMNS = 2**18  # sorted at a time, so that memory does not grow with the layer


def combine_by(aggregation: Aggregation, trim: float) -> Combine:
    """The function of this name: arrays and the devices' weights → one array."""
    if aggregation == "mean":
        return weighted_mean
    return partial(_without_extremes, trim=0.5 if aggregation == "median" else trim)


def weighted_mean(arrays: Sequence[Array], weights: Sequence[float]) -> Array:
    """`Σ w_k x_k`, added up in double precision and in the order given."""
    total = np.zeros(arrays[0].shape)
    for array, weight in zip(arrays, weights, strict=True):
        total += weight * array.astype(np.float64)
    return total.astype(arrays[0].dtype)


def _without_extremes(arrays: Sequence[Array], weights: Sequence[float], trim: float) -> Array:
    """The mean of each coordinate without `trim` of its values at either end; the median for one half.

    The cut is rounded up: with few devices, rounding down would trim nobody.
    """
    count = len(arrays)
    cut = min(math.ceil(trim * count - 1e-6), (count - 1) // 2)
    flat = [array.reshape(-1) for array in arrays]
    result = np.empty(flat[0].size, dtype=arrays[0].dtype)
    for start in range(0, result.size, COLUMNS):
        columns = np.sort([array[start : start + COLUMNS] for array in flat], axis=0)
        result[start : start + COLUMNS] = columns[cut : count - cut].mean(axis=0, dtype=np.float64)
    return result.reshape(arrays[0].shape)


def difference_norm(weights: Mapping[str, Array], sent: Mapping[str, Array]) -> float:
    """The Euclidean norm of what training changed, over all arrays together."""
    squares = sum(
        float(np.square(weights[name].astype(np.float64) - array).sum()) for name, array in sent.items()
    )
    return math.sqrt(squares)


def clip_share(update: Update, sent: Mapping[str, Array], largest: float) -> float:
    """What to multiply an update's difference by, so that its norm is at most this."""
    norm = difference_norm(update.weights, sent)
    return 1.0 if norm <= largest else largest / norm


def clipped(update: Update, sent: Mapping[str, Array], largest: float) -> Update:
    """The update with what it changed scaled down to this norm, up to the rounding of its weights."""
    share = clip_share(update, sent, largest)
    if share == 1:
        return update
    weights = {}
    for name, array in sent.items():
        before, after = array.astype(np.float64), update.weights[name]
        weights[name] = (before + share * (after - before)).astype(after.dtype)
    return replace(update, weights=weights)
