"""What a figure shows as one line or bar: the runs of one setting, over their seeds."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TypeVar

from fedmef.costs.device_process import ProcessCost, Shape, measure_process, measure_torch_dense
from fedmef.costs.limit import Tell
from fedmef.costs.tensors import TensorCost, measure_tensors
from fedmef.errors import FedmefError
from fedmef.experiment.settings import MACHINE_FIELDS, Experiment
from fedmef.report.costs import EstimatedCosts, estimated_costs
from fedmef.report.size import too_large
from fedmef.runs.directory import Run
from fedmef.studies.rows import Row, group_seeds, summarize_comparison


@dataclass(frozen=True)
class Group:
    """One setting of one method.

    Attributes:
        row: its numbers, as in the table of `fedmef compare`.
        runs: one for each seed.
        memory: tensors of a step on PyTorch, measured; or the reason why they could not be.
        process: the whole process of a device, measured; or the reason why it could not be.
        dense: that of PyTorch's dense device, likewise.
        estimated: by the paper's formulas; None for a method that has none.
    """

    row: Row
    runs: tuple[Run, ...]
    memory: TensorCost | str
    process: ProcessCost | str
    dense: ProcessCost | str
    estimated: EstimatedCosts | None

    @property
    def name(self) -> str:
        """`fedmef 0.9`, or `fedavg`."""
        return self.row.name


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds after this many rounds; no deviation for one seed."""

    round: int
    mean: float
    deviation: float | None


def group_runs(
    runs: Sequence[Run], tell: Tell = lambda words: None, *, allow_code: bool = False
) -> list[Group]:
    """The groups in the order of their first run; raises `UserError` when runs cannot be compared.

    What a run's configuration names as module:name is not imported unless `allow_code`. A network that it
    names is measured as the run's directory has it as data; a method is not.
    """
    rows = summarize_comparison(runs)
    measurements = _Measurements(tell, allow_code)
    members = group_seeds([run.experiment for run in runs])
    groups = [tuple(runs[place] for place in places) for places in members]
    return [
        Group(row, group, *measurements.of(group[0]), measurements.estimated(group[0]))
        for row, group in zip(rows, groups, strict=True)
    ]


def accuracy_over_rounds(group: Group) -> list[Spread]:
    """Test accuracy after each round that was evaluated."""
    return _spreads((record.number, record.test_accuracy) for run in group.runs for record in run.rounds)


def accuracy_before_adjustments(group: Group) -> list[Spread]:
    """Test accuracy just before each adjustment."""
    return _spreads(
        (record.number, record.accuracy_before_adjustment)
        for run in group.runs
        for record in run.rounds
        if record.adjusted
    )


def accuracy_after_adjustments(group: Group) -> list[Spread]:
    """Test accuracy just after each adjustment, in the same rounds."""
    return _spreads(
        (record.number, record.accuracy_after_adjustment)
        for run in group.runs
        for record in run.rounds
        if record.adjusted
    )


def layer_densities(group: Group) -> dict[str, float]:
    """Share of active weights in each sparse layer at the end, mean over seeds."""
    shares: dict[str, list[float]] = {}
    for run in group.runs:
        for name, layer in run.summary.layers.items():
            shares.setdefault(name, []).append(layer.active / layer.size)
    return {name: fmean(values) for name, values in shares.items()}


def _spreads(values: Iterable[tuple[int, float | None]]) -> list[Spread]:
    by_round: dict[int, list[float]] = {}
    for number, value in values:
        if value is not None:
            by_round.setdefault(number, []).append(value)
    return [
        Spread(number, fmean(seeds), stdev(seeds) if len(seeds) > 1 else None)
        for number, seeds in sorted(by_round.items())
    ]


Memories = tuple[TensorCost | str, ProcessCost | str, ProcessCost | str]
Cost = TypeVar("Cost")


class _Measurements:
    """Measures each configuration once, whatever its seeds; random images stand for the data."""

    def __init__(self, tell: Tell, allow_code: bool) -> None:
        self._tell, self._allow_code = tell, allow_code
        self._measured: dict[str, Memories] = {}

    def of(self, run: Run) -> Memories:
        """Tensors, the whole process and PyTorch's dense one, or why they cannot be measured here."""
        configuration = run.experiment.model_dump_json(exclude={"seed", *MACHINE_FIELDS})
        configuration += str((run.summary.classes, run.summary.image_shape))
        if configuration not in self._measured:
            self._tell(f"measuring a device of {run.path.name}, and PyTorch's dense one")
            parts = ("method", "loss") if self._is_read(run) else ("model", "method", "loss")
            own = self._obstacle(run, *parts)
            dense = self._obstacle(run, "model", "loss")
            self._measured[configuration] = (
                own or self._measure(measure_tensors, run),
                own or self._measure(measure_process, run),
                dense or _measure(measure_torch_dense, run),
            )
        return self._measured[configuration]

    def estimated(self, run: Run) -> EstimatedCosts | None:
        """By the paper's formulas, which need the network as data."""
        described = self._is_read(run) or not self._obstacle(run, "model")
        return estimated_costs(run) if described and not too_large(run) else None

    def _is_read(self, run: Run) -> bool:
        """Whether a network of the user's own is taken from the run's directory: its code is not run."""
        if self._allow_code or not run.code(("model",)):
            return False
        try:
            return run.network.opaque is None
        except FedmefError:  # of a damaged run all else may be there
            return False

    def _measure(self, measure: Callable[..., Cost], run: Run) -> Cost | str:
        if not self._is_read(run):
            return _measure(measure, run)
        return _measure(lambda *what: measure(*what, model=run.model()), run)

    def _obstacle(self, run: Run, *needed: str) -> str:
        """Why what needs the code of these settings cannot be measured; usually ""."""
        code = {} if self._allow_code else run.code(needed)
        if code:
            named = ", ".join(f"{field} = '{name}'" for field, name in code.items())
            return f"a report runs no code that a run names ({named})"
        return too_large(run)


def _measure(measure: Callable[[Experiment, Shape, int], Cost], run: Run) -> Cost | str:
    channels, height, width = run.summary.image_shape
    try:
        return measure(run.experiment, (channels, height, width), run.summary.classes)
    except Exception as error:  # a method or a network of the user's own may raise anything, or be gone
        return " ".join(str(error).split()) or type(error).__name__
