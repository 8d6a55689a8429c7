"""A memory limit that holds: refuses, before training, an experiment whose device does not fit.

What a device needs is measured, and so is every remedy that the error names.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from fedmef.cli.progress import human_bytes
from fedmef.costs.step import Shape, measure_device_memory
from fedmef.errors import FedmefError, UserError
from fedmef.experiment.settings import Experiment
from fedmef.methods import find_method

SPARSITIES = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99)
BATCH_TRIES = 4
MARGIN = 0.05  # of the limit stays free: a real round was up to 5 % above a measured one

Tell = Callable[[str], None]  # what is being measured now, for a person who waits


def silent(message: str) -> None:
    """Tell nobody."""


def check_device_memory(experiment: Experiment, shape: Shape, classes: int, tell: Tell = silent) -> None:
    """Raise `UserError` when a device needs more than `device_memory`, naming each knob that brings it in."""
    limit = experiment.device_memory
    if limit is None:
        return
    tell("measuring what a device needs")
    needed = needed_memory(experiment, shape, classes)
    room = round((1 - MARGIN) * limit)
    if needed <= room:
        return
    problem = (
        f"device_memory = {human_bytes(limit)}: a device of this experiment needs {human_bytes(needed)} "
        f"(measured; {MARGIN:.0%} of the limit stay free)"
    )
    measure = partial(_changed, experiment, shape, classes, tell)
    lighter: dict[str, list[Any]] = {
        "activation_sparsity": _above(experiment.activation_sparsity),
        "sparsity": _above(experiment.sparsity),
        "cache_dtype": ["fp16"] if experiment.cache_dtype == "fp32" else [],
    }
    ignored = ignored_knobs(experiment)
    remedies = {"batch_size": _largest_batch(experiment.batch_size, needed, room, measure)} | {
        name: _first_fitting(name, values, room, measure)
        for name, values in lighter.items()
        if name not in ignored
    }
    found = [
        f"{name} = {remedy[0]} ({human_bytes(remedy[1])})" for name, remedy in remedies.items() if remedy
    ]
    if not found:
        raise UserError(
            f"{problem}, and no single knob brings it in; take a smaller model or width, or let "
            "'fedmef plan' change several at once"
        )
    others = [name for name, remedy in remedies.items() if not remedy]
    rest = f"; {', '.join(others)} cannot alone" if others else ""
    raise UserError(f"{problem}; {' or '.join(found)} brings it in{rest}")


def ignored_knobs(experiment: Experiment) -> set[str]:
    """What means nothing to the experiment's method."""
    method = find_method(experiment.method)
    weights = {"sparsity"} if method.dense else set()
    return weights if method.prunes_activations else weights | {"activation_sparsity", "cache_dtype"}


def _above(current: float) -> list[float]:
    return [value for value in SPARSITIES if value > current]


Remedy = tuple[Any, int] | None  # the knob's value and what a device then needs


def _largest_batch(now: int, needed: int, limit: int, measure: Callable[..., int | None]) -> Remedy:
    """The largest batch that fits: memory is nearly linear in it, so a line predicts; measuring decides."""
    if now == 1 or (least := measure("batch_size", 1)) is None or least > limit:
        return None
    small, fits = 1, least
    large, too_much = now, needed
    for _ in range(BATCH_TRIES):
        slope = max(1.0, (too_much - fits) / (large - small))
        guess = min(large - 1, small + int((limit - fits) / slope))
        if guess <= small:
            break
        bytes_needed = measure("batch_size", guess)
        if bytes_needed is not None and bytes_needed <= limit:
            small, fits = guess, bytes_needed
            if limit - fits < slope:
                break
        else:
            large, too_much = guess, bytes_needed or too_much
    return small, fits


def _first_fitting(
    name: str, values: Sequence[Any], limit: int, measure: Callable[..., int | None]
) -> Remedy:
    """The first of values, ordered from heavy to light, that fits; found by halving."""
    high, needed = len(values) - 1, None
    while high >= 0 and (needed := measure(name, values[high])) is None:
        high -= 1  # it cannot be built: as light as can be is the one before
    if needed is None or needed > limit:  # when the lightest does not fit, none does
        return None
    low, found = 0, (values[high], needed)
    while low < high:
        middle = (low + high) // 2
        needed = measure(name, values[middle])
        if needed is not None and needed <= limit:
            found, high = (values[middle], needed), middle
        else:
            low = middle + 1
    return found


def _changed(
    experiment: Experiment, shape: Shape, classes: int, tell: Tell, name: str, value: Any
) -> int | None:
    """What a device needs with one knob changed; None when that cannot be, or died of too much."""
    tell(f"measuring {name} = {value}")
    try:
        return needed_memory(experiment.model_copy(update={name: value}), shape, classes)
    except FedmefError:  # a sparsity that leaves a layer without weights, for example
        return None


def needed_memory(experiment: Experiment, shape: Shape, classes: int) -> int:
    """What a device needs, measured once for each configuration and process."""
    unlimited = {"device_memory": None, "device": "cpu", "data_dir": None}
    return _once(experiment.model_copy(update=unlimited), tuple(shape), classes)


@cache
def _once(experiment: Experiment, shape: Shape, classes: int) -> int:
    return measure_device_memory(experiment, shape, classes)
