"""Every field is filled from what happened, and nothing that is read is trusted."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from pydantic import ValidationError

from fedmef.errors import UserError
from fedmef.experiment.settings import Experiment
from fedmef.federation.collection import Collected
from fedmef.federation.evaluation import Score
from fedmef.federation.round import Happened
from fedmef.methods import Adjustment
from fedmef.runs.directory import Run
from fedmef.runs.records import (
    DeviceReport,
    Failed,
    Finished,
    LayerCounts,
    Record,
    Round,
    Summary,
    finite,
    parameter_counts,
)
from fedmef.wire.job import Job
from tests.runs.written import NETWORK, a_model, a_round, a_summary

REPORT = DeviceReport(device=4, seconds=0.5, peak_memory=1000, bytes_down=30, bytes_up=20)
LATE = Failed(device=5, attempt=0, reason="late")
DOUBTED = Failed(device=4, attempt=1, reason="samples")
WRONG = Failed(device=6, attempt=1, reason="wrong")


def what_happened(**changes: Any) -> Happened:
    """A second attempt of an adjustment round; every number is another."""
    collected = Collected(
        devices=[4, 6],
        lost=[LATE],
        rejected=[WRONG],
        doubted=[DOUBTED],
        reports=[REPORT],
        attempts=2,
        bytes_down=3000,
        bytes_up=2000,
    )
    happened: dict[str, Any] = {
        "job": Job(method="fedmef", round=7, seed=0, learning_rate=0.25, initial_rate=0.5),
        "collected": collected,
        "train_loss": 1.25,
        "before": Score(0.75, 0.8),
        "adjustment": Adjustment(exchanged=11, dropped_magnitude=0.125, newcomers=0.25),
        "score": Score(0.625, 0.9, metrics={"top5": 0.95}),
        "active_weights": 99,
        "epsilon": 3.5,
        "seconds": 12.0,
        "backend": "native",
    }
    return Happened(**{**happened, **changes})


def test_every_field_of_a_round_is_taken_from_what_happened() -> None:
    record = Round.of(what_happened())
    expected = {
        "round": 7,
        "train_loss": 1.25,
        "test_accuracy": 0.625,
        "test_loss": 0.9,
        "metrics": {"top5": 0.95},
        "learning_rate": 0.25,
        "bytes_down": 3000,
        "bytes_up": 2000,
        "seconds": 12.0,
        "devices": [4, 6],
        "device_reports": [
            {"device": 4, "seconds": 0.5, "peak_memory": 1000, "bytes_down": 30, "bytes_up": 20}
        ],
        "lost": [{"device": 5, "attempt": 0, "reason": "late"}],
        "rejected": [{"device": 6, "attempt": 1, "reason": "wrong"}],
        "doubted": [{"device": 4, "attempt": 1, "reason": "samples"}],
        "attempts": 2,
        "epsilon": 3.5,
        "active_weights": 99,
        "adjusted": True,
        "accuracy_before_adjustment": 0.75,
        "accuracy_after_adjustment": 0.625,
        "exchanged_weights": 11,
        "dropped_magnitude": 0.125,
        "dropped_newcomers": 0.25,
        "backend": "native",
    }
    assert record.model_dump() == expected
    assert record.number == 8
    assert record.drop == 0.125


def test_what_did_not_happen_is_none() -> None:
    quiet = Round.of(what_happened(before=None, adjustment=None, score=None, epsilon=None))
    assert not quiet.adjusted
    unknown = {
        "test_accuracy",
        "test_loss",
        "epsilon",
        "accuracy_before_adjustment",
        "accuracy_after_adjustment",
        "exchanged_weights",
        "dropped_magnitude",
        "dropped_newcomers",
    }
    assert {name for name, value in quiet.model_dump().items() if value is None} == unknown
    assert quiet.drop is None


def test_an_adjustment_that_exchanged_nothing_is_none() -> None:
    record = Round.of(what_happened(adjustment=Adjustment(exchanged=0, dropped_magnitude=None)))
    assert (record.adjusted, record.exchanged_weights, record.drop) == (False, 0, None)


def test_accuracy_after_an_adjustment_needs_one_before_to_compare_with() -> None:
    """Devices that adjust their own masks leave none."""
    record = Round.of(what_happened(before=None))
    assert record.adjusted
    assert (record.test_accuracy, record.accuracy_after_adjustment, record.drop) == (0.625, None, None)


@pytest.mark.parametrize("loss", [math.inf, -math.inf, math.nan])
def test_a_loss_that_is_not_finite_is_written_as_nothing(loss: float) -> None:
    record = Round.of(what_happened(train_loss=loss, score=Score(0.1, loss)))
    assert (record.train_loss, record.test_loss, record.test_accuracy) == (None, None, 0.1)
    assert finite(loss) is None
    assert finite(None) is None
    assert finite(-2.5) == -2.5


def test_every_field_of_a_summary_is_taken_from_the_run() -> None:
    rounds = [
        a_round(0, test_accuracy=0.5, seconds=2.0, lost=[LATE, LATE], epsilon=1.0),
        a_round(1, test_accuracy=0.75, adjusted=True, rejected=[WRONG], attempts=3),
        a_round(2, test_accuracy=None, adjusted=True, bytes_up=17),
        a_round(
            3,
            test_accuracy=0.625,
            test_loss=0.5,
            bytes_down=13,
            attempts=2,
            epsilon=4.0,
            backend="native",
            metrics={"top5": None},
        ),
    ]
    versions = {"fedmef": "1.2", "torch": "3.4", "numpy": "5.6", "source": "7f"}
    summary = Summary.of(
        Finished(
            rounds,
            a_model(),
            versions,
            0.5,
            0.7,
            100,
            backend="native (avx2, 1 thread)",
            class_accuracy=(0.5, None),
            device_accuracy=(0.25, 0.75),
            stopped="s" * 2000,
        )
    )
    assert summary.model_dump() == {
        "test_accuracy": 0.625,
        "best_test_accuracy": 0.75,
        "test_loss": 0.5,
        "metrics": {"top5": None},
        "rounds": 4,
        "adjustments": 2,
        "bytes_down": 913,
        "bytes_up": 317,
        "seconds": 8.0,
        "lost_updates": 2,
        "rejected_updates": 1,
        "repeated_attempts": 3,
        "epsilon": 4.0,
        "parameters": 4,  # two active weights and two biases
        "parameters_if_dense": 10,
        "layers": {"out": {"active": 2, "size": 8}},
        "classes": 2,
        "image_shape": [1, 1, 4],
        "class_accuracy": [0.5, None],
        "device_accuracy_mean": 0.5,
        "device_accuracy_worst_tenth": 0.25,
        "problem": "",
        "stopped": "s" * 1000,
        "backend": "native",
        "backend_details": "native (avx2, 1 thread)",
        "fedmef": "1.2",
        "torch": "3.4",
        "numpy": "5.6",
        "source": "7f",
    }


def test_parameters_are_what_is_trained() -> None:
    model = a_model()
    assert parameter_counts(model) == (4, 10)
    assert NETWORK.arrays["out.mask"].role == "mask"


RECORDS: list[Record] = [a_round(), a_summary(), REPORT, LATE, LayerCounts(active=1, size=2)]
FIELDS = [(record, name) for record in RECORDS for name in type(record).model_fields]


def read(kind: type[Record], table: dict[str, Any]) -> Record:
    return kind.model_validate_json(json.dumps(table))


@pytest.mark.parametrize("record", [*RECORDS, Round.of(what_happened())], ids=lambda r: type(r).__name__)
def test_a_record_reads_back_as_it_was_written(record: Record) -> None:
    assert type(record).model_validate_json(record.model_dump_json()) == record


@given(
    loss=some.floats(allow_nan=False, allow_infinity=False),
    accuracy=some.floats(0, 1) | some.none(),
    count=some.integers(0, 10**18),
    reason=some.text(max_size=1000),
)
def test_numbers_and_text_read_back_to_the_last_bit(
    loss: float, accuracy: float | None, count: int, reason: str
) -> None:
    lost = [Failed(device=count, attempt=0, reason=reason)]
    record = a_round(train_loss=loss, test_accuracy=accuracy, bytes_down=count, lost=lost)
    again = Round.model_validate_json(record.model_dump_json())
    assert again.model_dump() == record.model_dump()
    assert math.copysign(1, again.train_loss or 0) == math.copysign(1, record.train_loss or 0)


@pytest.mark.parametrize(("record", "name"), FIELDS, ids=lambda part: part if isinstance(part, str) else "")
def test_every_field_is_checked_when_it_is_read(record: Record, name: str) -> None:
    table = json.loads(record.model_dump_json())
    assert read(type(record), table) == record
    for wrong in ({"a": "table"}, [["a list"]], "" if name == "image_shape" else ["text"]):
        with pytest.raises(ValidationError, match=name):
            read(type(record), {**table, name: wrong})


@pytest.mark.parametrize(
    ("record", "name"),
    [
        (record, name)
        for record, name in FIELDS
        if (type(record), name)
        not in (
            (Failed, "attempt"),
            (Summary, "problem"),
            (Round, "device_reports"),
            (Round, "dropped_newcomers"),
            (Round, "backend"),
            (Round, "doubted"),
            (Round, "metrics"),
            (Summary, "metrics"),
            (Summary, "stopped"),
            (Summary, "class_accuracy"),
            (Summary, "device_accuracy_mean"),
            (Summary, "device_accuracy_worst_tenth"),
            (Summary, "backend"),
            (Summary, "backend_details"),
            (Summary, "numpy"),
            (Summary, "source"),
        )
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_no_field_may_be_missing(record: Record, name: str) -> None:
    table = json.loads(record.model_dump_json())
    del table[name]
    with pytest.raises(ValidationError, match="Field required"):
        read(type(record), table)


@pytest.mark.parametrize(
    ("record", "name", "wrong"),
    [
        (a_round(), "round", -1),
        (a_round(), "round", "1"),
        (a_round(), "round", 10**19),
        (a_round(), "test_accuracy", 1.5),
        (a_round(), "test_accuracy", -0.1),
        (a_round(), "test_accuracy", math.nan),
        (a_round(), "train_loss", math.inf),
        (a_round(), "train_loss", "1.0"),
        (a_round(), "bytes_up", 1.5),
        (a_round(), "seconds", -1),
        (a_round(), "metrics", {"mine": math.inf}),
        (a_round(), "metrics", {"m" * 41: 1.0}),
        (a_round(), "metrics", {str(number): 1.0 for number in range(21)}),
        (a_round(), "adjusted", 1),
        (a_round(), "devices", [-1]),
        (a_round(), "lost", [{"device": 1, "attempt": 0, "reason": "x" * 1001}]),
        (a_round(), "device_reports", [{"device": 1}]),
        (a_summary(), "rounds", 0),
        (a_summary(), "image_shape", [1, 4]),
        (a_summary(), "image_shape", [1, 0, 4]),
        (a_summary(), "layers", {"out": {"active": 2, "size": 0}}),
        (a_summary(), "epsilon", -1.0),
        (a_summary(), "fedmef", 1),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(record: Record, name: str, wrong: object) -> None:
    with pytest.raises(ValidationError, match=name):
        read(type(record), {**json.loads(record.model_dump_json()), name: wrong})


def test_fields_that_nobody_knows_are_ignored() -> None:
    """A later version may write more."""
    table = json.loads(a_round().model_dump_json()) | {"temperature": 21, "nested": {"a": [1]}}
    assert read(Round, table) == a_round()


def test_a_run_names_the_file_and_the_field_that_is_wrong(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", Experiment(), NETWORK)
    line = a_round().model_dump_json()
    (run.path / "metrics.jsonl").write_text(line.replace('"test_accuracy":0.5', '"test_accuracy":5'))
    with pytest.raises(UserError, match=r"metrics\.jsonl is damaged: test_accuracy: .*less than or equal"):
        _ = run.rounds


def test_a_record_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        a_round().bytes_up = 7


def test_every_plain_number_is_a_scalar_and_what_was_not_measured_is_none() -> None:
    assert a_round(7).scalars() == {
        "train_loss": 1.0,
        "test_accuracy": 0.5,
        "test_loss": 1.5,
        "learning_rate": 0.1,
        "bytes_down": 300.0,
        "bytes_up": 100.0,
        "seconds": 2.0,
        "attempts": 1.0,
        "active_weights": 2.0,
        "adjusted": 0.0,
    }
    assert Round.of(what_happened()).scalars()["drop"] == 0.125


@pytest.mark.parametrize(
    ("accuracy", "loss", "said"),
    [
        (0.62, 0.69, ""),
        (0.59, 0.69, "learned nothing: a constant guess is right in 50.0%"),
        (0.5, 2.0, "diverged: its test loss is 2, a constant guess has 0.693"),
        (0.5, None, "diverged: its test loss is not finite"),
        (0.9, None, "diverged: its test loss is not finite"),
        (0.9, 5.0, ""),
        (0.9, 8.0, "diverged: its test loss is 8"),
    ],
)
def test_a_run_that_learned_nothing_says_so(accuracy: float, loss: float | None, said: str) -> None:
    """Of 100 samples of two classes, guesses are right in 50 ± 10."""
    rounds = [a_round(0, test_accuracy=accuracy, test_loss=loss)]
    versions = {"fedmef": "1", "torch": "2", "numpy": "3", "source": "4"}
    summary = Summary.of(Finished(rounds, a_model(), versions, 0.5, math.log(2), 100))
    assert said in summary.problem
    assert bool(said) == bool(summary.problem)
