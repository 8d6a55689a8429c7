"""Which run directories can be reported on, and why the others cannot. Nothing in them is trusted."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from fedmef.comparison import DENSE_METHODS
from fedmef.errors import UserError
from fedmef.experiment import Experiment
from fedmef.methods import METHODS
from fedmef.run_directory import FILES, METRICS, SUMMARY, Run

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, le=10**18)]  # a figure cannot take any number
AtLeastOne = Annotated[int, Field(ge=1, le=10**18)]
Whole = TypeVar("Whole")


class _Checked(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False, strict=True)


class Layer(_Checked):
    """How many of a sparse layer's weights are active."""

    active: Count
    size: AtLeastOne


class Summary(_Checked):
    """What a report uses of `summary.json`."""

    test_accuracy: Share
    best_test_accuracy: Share
    rounds: AtLeastOne
    bytes_down: Count
    bytes_up: Count
    seconds: Annotated[float, Field(ge=0, le=1e12)]
    parameters: Count
    parameters_if_dense: Count
    classes: AtLeastOne
    image_shape: list[AtLeastOne] = Field(min_length=3, max_length=3)
    layers: dict[str, Layer] = {}
    epsilon: Annotated[float, Field(ge=0)] | None = None
    fedmef: str = "unknown"
    torch: str = "unknown"


class Failed(_Checked):
    """A device whose update was lost or rejected."""

    device: Count
    reason: Annotated[str, Field(max_length=1000)]


class Round(_Checked):
    """What a report uses of a line of `metrics.jsonl`."""

    round: Count
    test_accuracy: Share | None
    bytes_down: Count
    bytes_up: Count
    adjusted: bool
    accuracy_before_adjustment: Share | None
    accuracy_after_adjustment: Share | None
    lost: list[Failed] = []
    rejected: list[Failed] = []


@dataclass(frozen=True)
class FinishedRun:
    """A whole run, read once and checked."""

    directory: Run
    summary: Summary
    rounds: tuple[Round, ...]

    @property
    def experiment(self) -> Experiment:
        """What was run."""
        return self.directory.experiment

    @property
    def sparsity(self) -> float:
        """Of the weights: 0 for dense methods, whatever their configuration says."""
        return 0.0 if self.experiment.method in DENSE_METHODS else self.experiment.sparsity


@dataclass(frozen=True)
class LeftOut:
    """A directory that is not reported on, and why."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return self.reason if str(self.path) in self.reason else f"{self.path}: {self.reason}"


@dataclass(frozen=True)
class FoundRuns:
    """What the directories gave."""

    runs: tuple[FinishedRun, ...]
    left_out: tuple[LeftOut, ...]


def read_runs(paths: Sequence[Path]) -> FoundRuns:
    """The finished runs of these run directories and directories of runs, in the order of a table."""
    runs: list[FinishedRun] = []
    left_out: list[LeftOut] = []
    for path in dict.fromkeys(run for given in paths for run in _run_directories(given)):
        try:
            runs.append(_read(path))
        except UserError as error:
            left_out.append(LeftOut(path, str(error)))
    return FoundRuns(tuple(sorted(runs, key=_place_in_table)), tuple(left_out))


def holds_runs(path: Path) -> bool:
    """Whether this is a directory of runs, and not a run itself."""
    return path.is_dir() and not _looks_like_run(path)


def _run_directories(path: Path) -> Iterable[Path]:
    if not holds_runs(path):
        return [path]
    inside = sorted(folder for folder in path.iterdir() if folder.is_dir() and _looks_like_run(folder))
    return inside or [path]


def _looks_like_run(path: Path) -> bool:
    return any((path / name).is_file() for name in FILES)


def _read(path: Path) -> FinishedRun:
    directory = Run.open(path)
    summary = _checked(TypeAdapter(Summary), directory.summary, path / SUMMARY)
    rounds = _checked(TypeAdapter(list[Round]), directory.metrics, path / METRICS)
    if [record.round for record in rounds] != list(range(summary.rounds)):
        raise UserError(f"{path / METRICS} is damaged: it lacks some of the {summary.rounds} rounds")
    for record in rounds:
        if record.adjusted and None in (record.accuracy_before_adjustment, record.accuracy_after_adjustment):
            raise UserError(f"{path / METRICS} is damaged: round {record.round} lacks its accuracies")
    return FinishedRun(directory, summary, tuple(rounds))


def _checked(shape: TypeAdapter[Whole], content: Any, file: Path) -> Whole:
    try:
        return shape.validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UserError(f"{file} is damaged: {place}: {first['msg']}") from None


def _place_in_table(run: FinishedRun) -> tuple[int, str, float, int]:
    names = list(METHODS)
    method = run.experiment.method
    place = names.index(method) if method in names else len(names)
    return place, method, run.sparsity, run.experiment.seed
