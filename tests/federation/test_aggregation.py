"""Robust aggregation: by hand, then one device in ten that is malicious."""

from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

import fedmef
from fedmef.errors import UserError
from fedmef.experiment.settings import Aggregation, Experiment
from fedmef.federation.aggregation import clipped, combine_by, difference_norm
from fedmef.federation.preparation import check_names
from fedmef.methods import Extras, Update
from fedmef.sparsity.arrays import Array

FIVE = [np.array([[value, -value]], dtype=np.float32) for value in (1.0, 2.0, 3.0, 4.0, 1000.0)]
ANY = [0.9, 0.025, 0.025, 0.025, 0.025]  # robust means do not look at weights


def test_the_median_of_each_coordinate_by_hand() -> None:
    median = combine_by("median", 0.2)
    assert median(FIVE, ANY).tolist() == [[3.0, -3.0]]
    assert median(FIVE[:4], ANY[:4]).tolist() == [[2.5, -2.5]]
    assert median(FIVE[:1], ANY[:1]).tolist() == [[1.0, -1.0]]
    assert median(FIVE[:2], ANY[:2]).tolist() == [[1.5, -1.5]]


def test_the_trimmed_mean_by_hand() -> None:
    assert combine_by("trimmed_mean", 0.2)(FIVE, ANY).tolist() == [[3.0, -3.0]]
    assert combine_by("trimmed_mean", 0.0)(FIVE, ANY).tolist() == [[202.0, -202.0]]
    assert combine_by("trimmed_mean", 0.01)(FIVE, ANY).tolist() == [[3.0, -3.0]]  # a whole device at least
    assert combine_by("trimmed_mean", 0.21)(FIVE, ANY).tolist() == [[3.0, -3.0]]  # but never all
    assert combine_by("trimmed_mean", 0.2)(FIVE[1:], ANY[1:]).tolist() == [[3.5, -3.5]]
    assert combine_by("trimmed_mean", 0.2)(FIVE * 2, ANY * 2).tolist() == [[3.0, -3.0]]


def test_the_mean_is_weighted() -> None:
    assert combine_by("mean", 0.2)(FIVE[:2], [0.75, 0.25]).tolist() == [[1.25, -1.25]]


def random_arrays(count: int) -> list[Array]:
    return [np.random.default_rng(number).normal(size=(7, 9)).astype(np.float32) for number in range(count)]


def test_large_arrays_are_combined_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = random_arrays(5)
    whole = combine_by("median", 0.2)(arrays, ANY)
    monkeypatch.setattr("fedmef.federation.aggregation.COLUMNS", 4)
    assert np.array_equal(combine_by("median", 0.2)(arrays, ANY), whole)
    assert np.array_equal(whole, np.median(arrays, axis=0))


@pytest.mark.parametrize("aggregation", ["mean", "median", "trimmed_mean"])
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_an_array_keeps_its_shape_and_type(aggregation: Aggregation, kind: str) -> None:
    arrays = [array.astype(kind) for array in random_arrays(4)]
    combined = combine_by(aggregation, 0.2)(arrays, [0.25] * 4)
    assert (combined.shape, combined.dtype) == ((7, 9), np.dtype(kind))
    scalar = combine_by(aggregation, 0.2)([np.array(1.0, dtype=kind)], [1.0])
    assert (scalar.shape, scalar.dtype, float(scalar)) == ((), np.dtype(kind), 1.0)


def test_means_are_added_up_in_double_precision() -> None:
    """In single precision 1 would be lost next to 10⁸."""
    arrays = [np.array([value], dtype=np.float32) for value in (1e8, 1.0, -1e8)]
    assert combine_by("mean", 0.2)(arrays, [1.0, 1.0, 1.0]).tolist() == [1.0]
    assert combine_by("trimmed_mean", 0.0)(arrays, ANY[:3]).tolist() == pytest.approx([1 / 3])


def single(*values: float) -> Array:
    return np.array(values, dtype=np.float32)


def test_clipping_scales_the_difference_and_nothing_else() -> None:
    sent = {"a": single(1.0, 1.0), "b": single(0.0)}
    update = Update(0, 1, 0.5, {"a": single(1.0, 4.0), "b": single(4.0)}, Extras())
    assert difference_norm(update.weights, sent) == 5.0
    assert clipped(update, sent, 5.0) is update
    half = clipped(update, sent, 2.5)
    assert half.weights["a"].tolist() == pytest.approx([1.0, 2.5], rel=1e-5)
    assert half.weights["b"].tolist() == pytest.approx([2.0], rel=1e-5)
    assert difference_norm(half.weights, sent) <= 2.5
    assert half.weights["a"].dtype == np.float32
    assert update.weights["a"].tolist() == [1.0, 4.0]  # the update itself stays


@pytest.mark.parametrize("changes", [{"aggregation": "median"}, {"clip_norm": 1.0}, {"max_update_norm": 1.0}])
@pytest.mark.parametrize("method", ["feddst", "zerofl"])
def test_methods_that_merge_in_their_own_way_are_refused(method: str, changes: dict[str, Any]) -> None:
    (field,) = changes
    with pytest.raises(UserError, match=f"{field} and method = '{method}'"):
        check_names(Experiment(method=method, **changes))


SMALL: dict[str, Any] = {
    "width": 8,
    "devices": 6,
    "devices_per_round": 5,
    "local_epochs": 1,
    "adjust_every": 1,
    "adjust_until": 9,
    "rounds": 2,
    "engine": "inline",
}


@pytest.mark.parametrize("method", ["fedavg", "fl_pqsu", "fedtiny", "prunefl", "fedmef"])
@pytest.mark.parametrize("aggregation", ["median", "trimmed_mean"])
def test_every_other_method_trains_with_it(tmp_path: Path, method: str, aggregation: str) -> None:
    settings = {**SMALL, "method": method, "aggregation": aggregation, "clip_norm": 5.0, "learning_rate": 0.1}
    run = fedmef.run(Experiment(**settings), tmp_path / "run")
    assert len({record.active_weights for record in run.rounds}) == 1


def test_an_update_above_the_norm_bound_is_rejected_and_named(tmp_path: Path) -> None:
    settings = {**SMALL, "rounds": 1, "attackers": 0.2, "attack_scale": -1e4, "max_update_norm": 1e3}
    run = fedmef.run(Experiment(**settings), tmp_path / "run")
    (rejected,) = run.rounds[0].rejected
    assert "above max_update_norm = 1000" in rejected.reason


ATTACK: dict[str, Any] = {"rounds": 30, "evaluate_every": 3, "engine": "processes", "workers": 2}


@pytest.fixture(scope="module")
def accuracies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """Over the whole run: that of a single round under attack depends on luck."""
    cases: dict[str, dict[str, Any]] = {
        "honest": {},
        "mean": {"attackers": 0.1},
        "median": {"attackers": 0.1, "aggregation": "median"},
        "trimmed_mean": {"attackers": 0.1, "aggregation": "trimmed_mean"},
    }
    folder = tmp_path_factory.mktemp("attack")
    runs = {
        name: fedmef.run(Experiment(**ATTACK, **case), folder / name).rounds for name, case in cases.items()
    }
    return {
        name: fmean(record.test_accuracy for record in rounds if record.test_accuracy is not None)
        for name, rounds in runs.items()
    }


@pytest.mark.slow
def test_one_attacker_in_ten_ruins_the_mean(accuracies: dict[str, float]) -> None:
    assert accuracies["mean"] < accuracies["honest"] - 0.2


@pytest.mark.slow
@pytest.mark.parametrize("aggregation", ["median", "trimmed_mean"])
def test_a_robust_mean_tolerates_one_attacker_in_ten(accuracies: dict[str, float], aggregation: str) -> None:
    assert accuracies[aggregation] > accuracies["honest"] - 0.05
