"""The preferred setting whose whole process fits a device's memory, measured rather than estimated.

Training every candidate is out of the question, so that an order of preference stands for accuracy, from what
costs most of it to what costs least (the evidence is in docs/memory.md):

    1. weight sparsity s_m as low as it gets
    2. then activation sparsity s_a
    3. then the cache in fp32 before fp16
    4. then the batch as large as asked for, down to an eighth of it

Each step makes a device lighter, so that one that does not fit rules out all that are heavier: some
eight measurements decide among 160 settings. A sparsity at which the network cannot be built is left out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedmef.costs.device_process import Shape, ignored_settings, measure_process
from fedmef.costs.limit import MARGIN, Tell
from fedmef.costs.units import human_bytes
from fedmef.device.choice import missing_kernels
from fedmef.errors import FedmefError, SparsityError, UserError
from fedmef.experiment.settings import Experiment

BATCH_DIVISORS = (1, 2, 4, 8)

# Each setting's values, from what is preferred and heavy to what is light; the first setting matters most.
PREFERENCES: Mapping[str, tuple[Any, ...]] = {
    "sparsity": (0.5, 0.8, 0.9, 0.95, 0.98),
    "activation_sparsity": (0.5, 0.8, 0.9, 0.95),
    "cache_dtype": ("fp32", "fp16"),
}


@dataclass(frozen=True)
class Candidate:
    """A setting that was tried, and whether it fits.

    Attributes:
        needed: bytes of the whole process; None when it could not be measured.
        backend: what it runs on; None when it could not be measured.
        problem: why not: it cannot be built, or its process died, perhaps of too much.
        starved: its sparsity leaves a layer without weights.
    """

    sparsity: float
    activation_sparsity: float
    cache_dtype: str
    batch_size: int
    needed: int | None
    fits: bool
    backend: str | None = None
    problem: str | None = None
    starved: bool = False


def plan_memory(
    experiment: Experiment,
    shape: Shape,
    classes: int,
    fixed: Sequence[str] = (),
    tell: Tell = lambda words: None,
) -> list[Candidate]:
    """All settings that were tried, in the order of preference; the first that fits is the plan.

    The experiment's batch size is the largest that is tried; settings in `fixed` stay as the experiment has
    them, and so do those that mean nothing to its method. Raises `UserError` when nothing fits.
    """
    limit = experiment.device_memory
    if limit is None:
        raise UserError("device_memory: say how much a device has, such as --device-memory 96MB")
    batches = [experiment.batch_size // divisor for divisor in BATCH_DIVISORS]
    choices: dict[str, tuple[Any, ...]] = {
        **PREFERENCES,
        "batch_size": tuple(dict.fromkeys(max(1, size) for size in batches)),
    }
    settled = {*fixed, *ignored_settings(experiment)}
    choices |= {name: (getattr(experiment, name),) for name in settled if name in choices}
    measured: dict[tuple[int, ...], Candidate] = {}

    def fits(ranks: tuple[int, ...]) -> bool:
        if ranks not in measured:
            setting = {
                name: values[rank] for (name, values), rank in zip(choices.items(), ranks, strict=True)
            }
            tell("measuring " + ", ".join(f"{name} = {value}" for name, value in setting.items()))
            measured[ranks] = _measure(experiment, setting, shape, classes, limit)
        return measured[ranks].fits

    def lightest() -> tuple[int, ...]:
        return tuple(len(values) - 1 for values in choices.values())

    while not fits(lightest()):
        least = measured[lightest()]
        if not least.starved or len(choices["sparsity"]) == 1:
            raise _nothing_fits(experiment, limit, least)
        choices["sparsity"] = choices["sparsity"][:-1]  # a lower one leaves every layer more weights
    chosen = [*lightest()]
    for setting, known in enumerate(lightest()):

        def with_rank(rank: int, setting: int = setting) -> bool:
            return fits((*chosen[:setting], rank, *chosen[setting + 1 :]))

        chosen[setting] = _most_preferred(known, with_rank)
    return [measured[ranks] for ranks in sorted(measured)]


def _most_preferred(known: int, fits: Callable[[int], bool]) -> int:
    """The lowest rank that fits, by halving; `known` does, and whatever is lighter than one that does."""
    low, high = 0, known
    while low < high:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle + 1
    return high


def _nothing_fits(experiment: Experiment, limit: int, least: Candidate) -> UserError:
    """The error when not even the lightest setting that can be built fits, or none can be built."""
    if least.starved:
        hint = "; --distribution erk leaves small layers more weights"
        return UserError(
            f"no setting can be built: {least.problem}{hint if experiment.distribution == 'uniform' else ''}"
        )
    if least.needed is None:
        return UserError(f"even the lightest setting cannot be measured: {least.problem}")
    needs = f"needs {human_bytes(least.needed)}"
    return UserError(
        f"device_memory = {human_bytes(limit)}: even the lightest setting {needs}; "
        + (missing_kernels() or "take a smaller model, width or batch_size, or a device with more memory")
    )


def _measure(
    experiment: Experiment, setting: Mapping[str, Any], shape: Shape, classes: int, limit: int
) -> Candidate:
    try:
        needed = measure_process(experiment.model_copy(update=dict(setting)), shape, classes)
    except FedmefError as error:  # a sparsity that leaves a layer without weights, or a process that died
        starved = isinstance(error, SparsityError)
        return Candidate(**setting, needed=None, fits=False, problem=str(error), starved=starved)
    fits = needed.process <= (1 - MARGIN) * limit
    return Candidate(**setting, needed=needed.process, fits=fits, backend=needed.backend)
