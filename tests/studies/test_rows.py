"""A row for every setting, over all its seeds."""

from pathlib import Path
from typing import Any

import pytest

from fedmef.errors import UserError
from fedmef.experiment.settings import Experiment
from fedmef.runs.directory import Run
from fedmef.studies.many import Failure
from fedmef.studies.rows import summarize_comparison, unnamed_differences
from tests.runs.written import NETWORK, a_round
from tests.small import write_run


def test_a_row_is_the_mean_and_deviation_over_seeds(tmp_path: Path) -> None:
    runs = [
        write_run(
            tmp_path / "a", Experiment(seed=0), [0.6, 0.5], {0: (0.5, 0.3), 1: (0.6, 0.5)}, seconds=5.0
        ),
        write_run(
            tmp_path / "b", Experiment(seed=1), [0.8, 0.7], {0: (0.5, 0.5), 1: (0.7, 0.6)}, seconds=7.0
        ),
        write_run(tmp_path / "c", Experiment(seed=4, engine="inline"), [1.0, 0.9], seconds=9.0),
    ]
    (row,) = summarize_comparison(runs)
    assert (row.method, row.sparsity, row.seeds, row.failed_seeds) == ("fedmef", 0.9, (0, 1, 4), ())
    assert row.accuracy == pytest.approx(0.7)
    assert row.accuracy_std == pytest.approx(0.2)  # √((0.04 + 0 + 0.04) / 2)
    assert row.best_accuracy == pytest.approx(0.8)
    assert row.adjustment_drop == pytest.approx(0.1)  # of 0.2, 0.1, 0 and 0.1
    assert row.bytes_per_round == 400
    assert row.seconds == pytest.approx(7)
    assert (row.parameters, row.parameters_if_dense) == (7, 70)


def test_one_seed_has_no_deviation_and_no_adjustment_has_no_drop(tmp_path: Path) -> None:
    (row,) = summarize_comparison([write_run(tmp_path / "a", Experiment(), [0.5])])
    assert (row.accuracy, row.accuracy_std, row.adjustment_drop) == (0.5, None, None)


def test_rows_are_methods_and_sparsities_in_their_order(tmp_path: Path) -> None:
    wanted = [("fedtiny", 0.9), ("fedmef", 0.95), ("fedmef", 0.9), ("fedavg", 0.0)]
    runs = [
        write_run(
            tmp_path / f"{number}-{seed}", Experiment(method=method, sparsity=sparsity, seed=seed), [0.5]
        )
        for seed in (0, 1)
        for number, (method, sparsity) in enumerate(wanted)
    ]
    rows = summarize_comparison(runs)
    assert [(row.method, row.sparsity) for row in rows] == wanted
    assert all(row.seeds == (0, 1) for row in rows)


@pytest.mark.parametrize("method", ["fedavg", "fedavg_sap"])
def test_sparsity_means_nothing_to_a_dense_method(tmp_path: Path, method: str) -> None:
    one = write_run(tmp_path / "a", Experiment(method=method, seed=0, sparsity=0.5), [0.5])
    two = write_run(tmp_path / "b", Experiment(method=method, seed=1, sparsity=0.9), [0.6])
    (row,) = summarize_comparison([one, two])
    assert (row.sparsity, row.seeds) == (0.0, (0, 1))


@pytest.mark.parametrize(
    ("changes", "accuracies", "complaint"),
    [
        ({"method": "fedtiny", "dataset": "cifar10"}, [0.5], "dataset = digits in the one, cifar10 in the"),
        ({"method": "fedtiny", "model": "resnet18"}, [0.5], "model = small_cnn in the one, resnet18"),
        ({"method": "fedtiny"}, [0.5] * 3, "rounds = 1 in the one, 3"),
        ({}, [0.5], "are the same experiment"),
    ],
)
def test_runs_that_do_not_belong_together_are_not_compared(
    tmp_path: Path, changes: dict[str, Any], accuracies: list[float], complaint: str
) -> None:
    runs = [
        write_run(tmp_path / "a", Experiment(), [0.5]),
        write_run(tmp_path / "b", Experiment(**changes), accuracies),
    ]
    with pytest.raises(UserError, match=complaint):
        summarize_comparison(runs)


def test_an_unfinished_and_a_damaged_run_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a is not finished"):
        summarize_comparison([Run.create(tmp_path / "a", Experiment(), NETWORK)])
    damaged = write_run(tmp_path / "b", Experiment(), [0.5])
    (damaged.path / "metrics.jsonl").write_text('{"adjusted": true}')
    with pytest.raises(UserError, match=r"b/metrics\.jsonl is damaged: round: Field required"):
        summarize_comparison([damaged])


def test_failures_stand_in_the_table_where_their_run_would(tmp_path: Path) -> None:
    failed = [
        Failure(tmp_path / str(seed), Experiment(method="fedtiny", seed=seed, rounds=1), "died")
        for seed in (0, 1)
    ]
    half: list[Run | Failure] = [
        write_run(tmp_path / "a", Experiment(), [0.5]),
        Failure(tmp_path / "b", Experiment(seed=1, rounds=1), "died"),
    ]
    tiny, mef = summarize_comparison([*failed, *half])
    assert (tiny.method, tiny.seeds, tiny.failed_seeds, tiny.accuracy) == ("fedtiny", (), (0, 1), None)
    assert (mef.seeds, mef.failed_seeds, mef.accuracy, mef.accuracy_std) == ((0,), (1,), 0.5, None)


def test_settings_that_tell_rows_of_a_method_apart_are_in_their_names(tmp_path: Path) -> None:
    experiments = [
        Experiment(method="fedavg", learning_rate=0.3),
        Experiment(alpha=0.1, local_epochs=2),
        Experiment(alpha=0.5, local_epochs=2),
        Experiment(alpha=0.5, local_epochs=2, seed=1, engine="inline"),
    ]
    runs = [write_run(tmp_path / str(place), asked, [0.5]) for place, asked in enumerate(experiments)]
    rows = summarize_comparison(runs)
    assert [row.name for row in rows] == ["fedavg", "fedmef 0.9, alpha 0.1", "fedmef 0.9, alpha 0.5"]
    assert [row.label for row in rows] == ["fedavg", "fedmef, alpha 0.1", "fedmef, alpha 0.5"]
    assert [row.seeds for row in rows] == [(0,), (0,), (0, 1)]
    # fedavg's alpha is not in its name, and between the methods these differ as well
    assert unnamed_differences(experiments) == ["alpha", "local_epochs", "learning_rate"]


def test_a_hopeless_training_is_remarked(tmp_path: Path) -> None:
    guessing = write_run(tmp_path / "a", Experiment(), [0.11])
    lost = write_run(tmp_path / "b", Experiment(method="fedtiny"), [0.9])
    lost.log(a_round(1, train_loss=None))
    good = write_run(tmp_path / "c", Experiment(method="feddst"), [0.9])
    assert [row.warning for row in summarize_comparison([guessing, lost, good])] == [
        "at chance level, as if it guessed one of 10 classes",
        "its training loss was not finite",
        "",
    ]
