"""What a run writes down of a round and of its end: one model for writing and for reading.

A field says where its value comes from, so a new number per round is one line here: it is then in
`metrics.jsonl`, in TensorBoard and in `Run.rounds`. Nothing that is read is trusted: every field is checked.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedmef.experiment.settings import MOST_METRICS
from fedmef.sparsity.model import Model
from fedmef.sparsity.network import MAXIMUM_OPERATIONS

if TYPE_CHECKING:
    from fedmef.federation.round import Happened

Value = TypeVar("Value")
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, le=10**18)]  # a figure cannot take any number
AtLeastOne = Annotated[int, Field(ge=1, le=10**18)]
Seconds = Annotated[float, Field(ge=0, le=1e12)]
# Of the user's own; None where the network's answers are not finite.
Metrics = Annotated[dict[Annotated[str, Field(max_length=40)], float | None], Field(max_length=MOST_METRICS)]
MOST_CLASSES = 10_000  # whose accuracies a summary has room for
LONGEST_REASON = 1000
MOST_MEMORY = 2**44  # that a device can say it has; a figure of it must stay readable
Executed = Literal["torch", "native"]  # what executed the network


class Record(BaseModel):
    """Something that a run writes down, checked whoever wrote it."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False, strict=True)

    @classmethod
    def of(cls, source: Any) -> Self:
        """The record of what happened, every field taken from it."""
        extras = {name: cast(Any, field.json_schema_extra) for name, field in cls.model_fields.items()}
        return cls(**{name: extra["of"](source) for name, extra in extras.items() if extra})


def _field(missing: Any, take: Any) -> Any:
    # pydantic would copy an empty list or table for every line that lacks it: a third of the time.
    default = {"default_factory": type(missing)} if missing in ([], {}) else {"default": missing}
    return Field(**default, json_schema_extra={"of": take})


def of_round(take: "Callable[[Happened], Value]", missing: Any = ...) -> Value:
    """A field that is taken from what happened in a round; `missing` is for runs from before it was there."""
    return cast(Value, _field(missing, take))


def of_run(take: "Callable[[Finished], Value]", missing: Any = ...) -> Value:
    """A field that is taken from a run at its end."""
    return cast(Value, _field(missing, take))


class DeviceReport(Record):
    """What a device measured of itself in a round.

    Attributes:
        seconds: from the message's arrival to the answer.
        peak_memory: most resident bytes of the process that trained, interpreter and libraries included.
        bytes_down, bytes_up: length of the message and of the answer.
    """

    device: Count
    seconds: Seconds
    peak_memory: Count
    bytes_down: Count
    bytes_up: Count


class Failed(Record):
    """A device whose update was lost or rejected, or something else that it said.

    Attributes:
        attempt: how often the round was tried before.
    """

    device: Count
    attempt: Count = 0
    reason: Annotated[str, Field(max_length=LONGEST_REASON)]


def received_report(
    device: int, seconds: object, peak_memory: object, *, bytes_down: int, bytes_up: int
) -> DeviceReport | Failed:
    """What a device says of itself, or why that cannot be: its report is left out then, and no more."""
    try:
        report = DeviceReport(
            device=device,
            seconds=cast(float, seconds),
            peak_memory=cast(int, peak_memory),
            bytes_down=bytes_down,
            bytes_up=bytes_up,
        )
    except ValidationError as error:
        wrong = ", ".join(str(detail["loc"][0]) for detail in error.errors(include_input=False))
        return Failed(device=device, reason=f"its report of itself is left out: no such {wrong}")
    if report.peak_memory > MOST_MEMORY:
        return Failed(device=device, reason="its report of itself is left out: no such peak_memory")
    return report


class Round(Record):
    """A line of `metrics.jsonl`. Rounds are counted from 0 there, and from 1 wherever people read them."""

    round: Count = of_round(lambda happened: happened.job.round)
    train_loss: float | None = of_round(lambda happened: finite(happened.train_loss))
    test_accuracy: Share | None = of_round(
        lambda happened: happened.score.accuracy if happened.score else None
    )
    test_loss: float | None = of_round(
        lambda happened: finite(happened.score.loss) if happened.score else None
    )
    metrics: Metrics = of_round(lambda happened: happened.score.metrics if happened.score else {}, missing={})
    learning_rate: float = of_round(lambda happened: happened.job.learning_rate)
    bytes_down: Count = of_round(lambda happened: happened.collected.bytes_down)
    bytes_up: Count = of_round(lambda happened: happened.collected.bytes_up)
    seconds: Seconds = of_round(lambda happened: happened.seconds)
    devices: list[Count] = of_round(lambda happened: happened.collected.devices)
    # A run has these in `devices.jsonl`; earlier versions had them here.
    device_reports: list[DeviceReport] = of_round(lambda happened: happened.collected.reports, missing=[])
    lost: list[Failed] = of_round(lambda happened: happened.collected.lost)
    rejected: list[Failed] = of_round(lambda happened: happened.collected.rejected)
    doubted: list[Failed] = of_round(lambda happened: happened.collected.doubted, missing=[])
    attempts: Count = of_round(lambda happened: happened.collected.attempts)
    epsilon: float | None = of_round(lambda happened: happened.epsilon)
    active_weights: Count = of_round(lambda happened: happened.active_weights)
    adjusted: bool = of_round(lambda happened: happened.adjusted)
    accuracy_before_adjustment: Share | None = of_round(
        lambda happened: happened.before.accuracy if happened.before else None
    )
    accuracy_after_adjustment: Share | None = of_round(
        lambda happened: happened.score.accuracy if happened.before and happened.score else None
    )
    exchanged_weights: Count | None = of_round(
        lambda happened: happened.adjustment.exchanged if happened.adjustment else None
    )
    dropped_magnitude: float | None = of_round(
        lambda happened: finite(happened.adjustment.dropped_magnitude) if happened.adjustment else None
    )
    dropped_newcomers: Share | None = of_round(
        lambda happened: happened.adjustment.newcomers if happened.adjustment else None, missing=None
    )
    backend: Executed = of_round(lambda happened: happened.backend, missing="torch")

    @property
    def number(self) -> int:
        """How many rounds are finished with this one."""
        return self.round + 1

    @property
    def drop(self) -> float | None:
        """Test accuracy lost at the adjustment; None when there was none, or nothing to compare."""
        before, after = self.accuracy_before_adjustment, self.accuracy_after_adjustment
        return before - after if self.adjusted and before is not None and after is not None else None

    def scalars(self) -> Mapping[str, float]:
        """Every plain number of the round, by name; what was not measured in it is not there."""
        own = {f"metrics/{name}": value for name, value in self.metrics.items()}
        values = {**self.model_dump(exclude={"round"}), "drop": self.drop, **own}
        return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}


class LayerCounts(Record):
    """How many of a sparse layer's weights are active."""

    active: Count
    size: AtLeastOne


@dataclass(frozen=True, eq=False)
class Finished:
    """A run that came to its end: what its summary is taken from.

    Attributes:
        guess_accuracy, guess_loss: what a constant guess scores on the test data.
        test_samples: how many those are.
        class_accuracy: of each class's own test samples; None for a class that has none.
        device_accuracy: what each device may expect of the classes that it has.
        backend: what executed the network at the evaluation, such as native (avx2, 1 thread), and why.
        stopped: why a callback ended it before its last round, or "".
    """

    rounds: list[Round]
    model: Model
    versions: Mapping[str, str]
    guess_accuracy: float
    guess_loss: float
    test_samples: int
    backend: str = "torch"
    class_accuracy: Sequence[float | None] = ()
    device_accuracy: Sequence[float] = ()
    stopped: str = ""


def problem_of(run: Finished) -> str:
    """What a person must be told of a run that came to its end and yet learned nothing; usually ""."""
    accuracy, loss, guess = accuracies(run)[-1], run.rounds[-1].test_loss, run.guess_accuracy
    noise = 2 * math.sqrt(guess * (1 - guess) / run.test_samples)
    if loss is None:
        return "it diverged: its test loss is not finite; lower the learning rate"
    better = accuracy > guess + noise
    if loss > (10 if better else 1.5) * run.guess_loss:
        return f"it diverged: its test loss is {loss:.3g}, a constant guess has {run.guess_loss:.3g}"
    if better:
        return ""
    return f"it learned nothing: a constant guess is right in {guess:.1%} of the cases too"


class Summary(Record):
    """`summary.json`: a run's result in a few numbers."""

    test_accuracy: Share = of_run(lambda run: accuracies(run)[-1])
    best_test_accuracy: Share = of_run(lambda run: max(accuracies(run)))
    test_loss: float | None = of_run(lambda run: run.rounds[-1].test_loss)
    metrics: Metrics = of_run(lambda run: run.rounds[-1].metrics, missing={})
    rounds: AtLeastOne = of_run(lambda run: len(run.rounds))
    adjustments: Count = of_run(lambda run: sum(record.adjusted for record in run.rounds))
    bytes_down: Count = of_run(lambda run: sum(record.bytes_down for record in run.rounds))
    bytes_up: Count = of_run(lambda run: sum(record.bytes_up for record in run.rounds))
    seconds: Seconds = of_run(lambda run: sum(record.seconds for record in run.rounds))
    lost_updates: Count = of_run(lambda run: sum(len(record.lost) for record in run.rounds))
    rejected_updates: Count = of_run(lambda run: sum(len(record.rejected) for record in run.rounds))
    repeated_attempts: Count = of_run(lambda run: sum(record.attempts - 1 for record in run.rounds))
    epsilon: Annotated[float, Field(ge=0)] | None = of_run(lambda run: run.rounds[-1].epsilon)
    parameters: Count = of_run(lambda run: parameter_counts(run.model)[0])
    parameters_if_dense: Count = of_run(lambda run: parameter_counts(run.model)[1])
    layers: Annotated[dict[str, LayerCounts], Field(max_length=MAXIMUM_OPERATIONS)] = of_run(
        lambda run: layer_counts(run.model)
    )
    classes: AtLeastOne = of_run(lambda run: run.model.network.classes)
    image_shape: Annotated[list[AtLeastOne], Field(min_length=3, max_length=3)] = of_run(
        lambda run: list(run.model.network.input.shape)
    )
    class_accuracy: Annotated[list[Share | None], Field(max_length=MOST_CLASSES)] = of_run(
        lambda run: list(run.class_accuracy) if len(run.class_accuracy) <= MOST_CLASSES else [], missing=[]
    )
    device_accuracy_mean: Share | None = of_run(lambda run: mean(run.device_accuracy), missing=None)
    device_accuracy_worst_tenth: Share | None = of_run(
        lambda run: mean(worst_tenth(run.device_accuracy)), missing=None
    )
    problem: str = of_run(problem_of, missing="")
    stopped: Annotated[str, Field(max_length=LONGEST_REASON)] = of_run(
        lambda run: run.stopped[:LONGEST_REASON], missing=""
    )
    backend: Executed = of_run(lambda run: run.rounds[-1].backend, missing="torch")
    backend_details: str = of_run(lambda run: run.backend, missing="torch")
    fedmef: str = of_run(lambda run: run.versions["fedmef"])
    torch: str = of_run(lambda run: run.versions["torch"])
    numpy: str = of_run(lambda run: run.versions["numpy"], missing="unknown")
    source: str = of_run(lambda run: run.versions["source"], missing="unknown")


def worst_tenth(values: Sequence[float]) -> list[float]:
    """The smallest tenth of them, at least one."""
    return sorted(values)[: math.ceil(len(values) / 10)]


def mean(values: Sequence[float]) -> float | None:
    """None of none."""
    return min(1.0, math.fsum(values) / len(values)) if values else None


def finite(value: float | None) -> float | None:
    """JSON has no infinities: None stands for what is not finite."""
    return value if value is not None and math.isfinite(value) else None


def accuracies(run: Finished) -> list[float]:
    """Test accuracy of the rounds that were evaluated."""
    return [record.test_accuracy for record in run.rounds if record.test_accuracy is not None]


def layer_counts(model: Model) -> dict[str, LayerCounts]:
    """Active weights and size of every sparse layer."""
    layers = model.network.sparse_layers
    return {
        name: LayerCounts(active=count, size=layers[name].size)
        for name, count in model.active_counts().items()
    }


def parameter_counts(model: Model) -> tuple[int, int]:
    """Trained numbers of the model, and how many there would be if it were dense."""
    arrays = model.network.arrays
    active = sum(model.state[name].size for name, spec in arrays.items() if spec.role == "weight")
    pruned = sum(layer.size - layer.active for layer in layer_counts(model).values())
    return active, active + pruned
