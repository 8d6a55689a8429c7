"""A finished run, read once and checked: nothing in a run's directory is trusted."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from fedmef.errors import UserError
from fedmef.experiment.settings import Experiment
from fedmef.methods import weight_sparsity
from fedmef.runs.directory import METRICS, SUMMARY, Run

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
    """What tables and figures use of `summary.json`."""

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


class DeviceCosts(_Checked):
    """What a device measured of itself in a round."""

    device: Count
    seconds: Annotated[float, Field(ge=0, le=1e12)]
    peak_memory: Count
    bytes_down: Count
    bytes_up: Count


class Failed(_Checked):
    """A device whose update was lost or rejected."""

    device: Count
    reason: Annotated[str, Field(max_length=1000)]


class Round(_Checked):
    """What they use of a line of `metrics.jsonl`."""

    round: Count
    test_accuracy: Share | None
    bytes_down: Count
    bytes_up: Count
    adjusted: bool
    accuracy_before_adjustment: Share | None
    accuracy_after_adjustment: Share | None
    lost: list[Failed] = []
    rejected: list[Failed] = []
    device_reports: list[DeviceCosts] = []

    @property
    def number(self) -> int:
        """How many rounds are finished with this one: people count from 1."""
        return self.round + 1


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
        """Of the weights."""
        return weight_sparsity(self.experiment)


def read_finished(path: Path) -> FinishedRun:
    """The run in this directory; raises `UserError` when it is not finished, or damaged."""
    directory = Run.open(path)
    summary = _checked(TypeAdapter(Summary), directory.summary, path / SUMMARY)
    rounds = _checked(TypeAdapter(list[Round]), directory.metrics, path / METRICS)
    if [record.round for record in rounds] != list(range(summary.rounds)):
        raise UserError(f"{path / METRICS} is damaged: it lacks some of the {summary.rounds} rounds")
    for record in rounds:
        if (record.accuracy_before_adjustment is None) != (record.accuracy_after_adjustment is None):
            raise UserError(f"{path / METRICS} is damaged: round {record.round} lacks an accuracy")
    return FinishedRun(directory, summary, tuple(rounds))


def _checked(shape: TypeAdapter[Whole], content: Any, file: Path) -> Whole:
    try:
        return shape.validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UserError(f"{file} is damaged: {place}: {first['msg']}") from None
