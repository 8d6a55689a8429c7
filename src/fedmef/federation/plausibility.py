"""Whether an update can be honest, by what the other devices of its round sent, and how much it counts for.

An update is implausible when it changes more than `ratio` times the round's median, and more than the model's
own norm. What is compared, each kind on its own:

    weights       what training changed, ||θ_k − θ||
    statistics    of BatchNorm, likewise
    gradients     growth scores, as what one step down them would change, η ||g||
    extras        other floating-point arrays of a method, as they are

All but weights differ more between honest devices: ten times as much is allowed. Where fewer than three
devices answered there is no median that a single one could not choose: the model itself stands for it.
docs/robustness.md has how far apart honest devices are.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedmef.sparsity.arrays import Array
from fedmef.sparsity.model import Model
from fedmef.wire.job import Job
from fedmef.wire.update import Update

FEWEST_TO_COMPARE = 3
MORE_FREEDOM = 10.0  # of all but weights
DIVERGED = 1e6  # times the model's own norm: no training that works does that, however many devices did it


@dataclass(frozen=True)
class Implausible:
    """Why an update cannot be honest; or `diverged`, which is no lie when it happened to all devices."""

    reason: str
    diverged: bool


def implausible(
    updates: Sequence[Update], model: Model, sent: Mapping[str, Array], job: Job, ratio: float
) -> dict[int, Implausible]:
    """The devices whose updates cannot be honest."""
    sizes = {update.device: magnitudes(update, model, sent, job) for update in updates}
    compared = len(updates) >= FEWEST_TO_COMPARE
    reference = "the round's median" if compared else "the model's own"
    found: dict[int, Implausible] = {}
    for kind in sorted({kind for size in sizes.values() for kind in size}):
        norms = {device: size.get(kind, 0.0) for device, size in sizes.items()}
        own = _own_norm(model, sent, "statistic" if kind == "statistics" else "weight")
        typical = lower_median(norms.values()) if compared else own
        allowed = ratio if kind == "weights" else MORE_FREEDOM * ratio
        most = min(max(allowed * typical, own), DIVERGED * own)
        for device, norm in norms.items():
            if norm > most and device not in found:
                found[device] = Implausible(
                    f"device {device} sent {kind} of norm {norm:.3g}: {reference} is {typical:.3g}, at most "
                    f"{most:.3g} is plausible (max_norm_ratio = {ratio:g})",
                    diverged=norm > DIVERGED * own,
                )
    return found


def magnitudes(update: Update, model: Model, sent: Mapping[str, Array], job: Job) -> dict[str, float]:
    """The norms by which an update is compared with others."""
    arrays, extras = model.network.arrays, update.extras
    sizes = {}
    for kind, role in (("weights", "weight"), ("statistics", "statistic")):
        names = [name for name in sent if arrays[name].role == role]
        if names:
            sizes[kind] = _norm(update.weights[name].astype(np.float64) - sent[name] for name in names)
    if extras.growth:
        steps = (scores.gradients.astype(np.float64) for scores in extras.growth.values())
        sizes["gradients"] = job.learning_rate * _norm(steps)
    if others := [array for array in extras.arrays.values() if array.dtype.kind == "f"]:
        sizes["extras"] = _norm(array.astype(np.float64) for array in others)
    return sizes


def lower_median(values: Iterable[float]) -> float:
    """The middle one; of two middle ones the smaller: a single value can never push it up."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


def _own_norm(model: Model, sent: Mapping[str, Array], role: str) -> float:
    """Of what was sent; at least 1, so that a model of zeros can be left."""
    arrays = model.network.arrays
    return max(1.0, _norm(sent[name].astype(np.float64) for name in sent if arrays[name].role == role))


def _norm(arrays: Iterable[Array]) -> float:
    """Infinite for what is not a number, which no median could be taken of."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = sum(float(np.square(array).sum()) for array in arrays)
    return math.inf if math.isnan(squares) else math.sqrt(squares)
