from pathlib import Path

import pytest

from fedmef.costs import measure_step
from fedmef.costs.memory import DeviceMemory, MemoryMeasurements
from fedmef.errors import UserError
from fedmef.report.groups import (
    Group,
    Spread,
    accuracy_after_adjustments,
    accuracy_before_adjustments,
    accuracy_over_rounds,
    group_runs,
    layer_densities,
)
from fedmef.report.reading import read_runs
from fedmef.studies import STUDIES
from tests.report.finished_runs import experiment, write_run


def groups_in(folder: Path) -> list[Group]:
    return group_runs(read_runs([folder]).runs)


def test_seeds_make_one_group_with_mean_and_sample_deviation(tmp_path: Path) -> None:
    write_run(tmp_path / "a", experiment(seed=0), [None, 0.5])
    write_run(tmp_path / "b", experiment(seed=1), [None, 0.7])
    (group,) = groups_in(tmp_path)
    assert group.name == "fedmef 0.9"
    # (0.5 + 0.7) / 2, and sqrt((0.1² + 0.1²) / 1)
    (spread,) = accuracy_over_rounds(group)
    assert spread.round == 2
    assert spread.mean == pytest.approx(0.6)
    assert spread.deviation == pytest.approx(0.02**0.5)


def test_one_seed_has_no_deviation(tmp_path: Path) -> None:
    write_run(tmp_path / "a", experiment(), [0.25, 0.5])
    assert accuracy_over_rounds(groups_in(tmp_path)[0]) == [Spread(1, 0.25, None), Spread(2, 0.5, None)]


def test_methods_and_sparsities_are_groups_and_dense_methods_have_no_sparsity(tmp_path: Path) -> None:
    write_run(tmp_path / "a", experiment("fedmef", sparsity=0.9), [0.5])
    write_run(tmp_path / "b", experiment("fedmef", sparsity=0.8), [0.5])
    write_run(tmp_path / "c", experiment("fedavg", sparsity=0.9), [0.5])
    assert [group.name for group in groups_in(tmp_path)] == ["fedavg", "fedmef 0.8", "fedmef 0.9"]


@pytest.mark.parametrize("name", ["heterogeneity", "local_epochs", "selected_clients", "marked_magnitude"])
def test_a_study_can_be_reported_though_its_cases_share_method_and_sparsity(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryMeasurements, "of", lambda *_: "not asked")
    experiments = STUDIES[name].experiments("smoke")
    for directory, asked in experiments.items():
        write_run(tmp_path / directory, asked, [0.5] * asked.rounds)
    names = [group.name for group in groups_in(tmp_path)]
    assert len(names) == len(set(names)) == len(experiments)


def test_variants_are_in_the_order_of_their_values(tmp_path: Path) -> None:
    for period in (10, 3, 5):
        write_run(tmp_path / str(period), experiment(adjust_every=period), [0.5])
    assert [group.row.variant for group in groups_in(tmp_path)] == [
        f"adjust_every {period}" for period in (3, 5, 10)
    ]


def test_adjustments_are_paired_before_and_after(tmp_path: Path) -> None:
    write_run(tmp_path / "a", experiment(seed=0), [0.3, 0.3], {1: (0.5, 0.25)})
    write_run(tmp_path / "b", experiment(seed=1), [0.3, 0.3], {1: (0.7, 0.75)})
    (group,) = groups_in(tmp_path)
    (before,), (after,) = accuracy_before_adjustments(group), accuracy_after_adjustments(group)
    assert (before.round, after.round) == (2, 2)
    assert before.mean == pytest.approx(0.6)
    assert after.mean == pytest.approx(0.5)


def test_densities_are_active_weights_over_size(tmp_path: Path) -> None:
    write_run(tmp_path / "a", experiment(seed=0), [0.5], layers={"conv": (1, 4), "last": (4, 4)})
    write_run(tmp_path / "b", experiment(seed=1), [0.5], layers={"conv": (3, 4), "last": (4, 4)})
    assert layer_densities(groups_in(tmp_path)[0]) == {"conv": 0.5, "last": 1.0}


def test_runs_of_different_data_are_refused_with_the_difference(tmp_path: Path) -> None:
    write_run(tmp_path / "a", experiment(dataset="digits"), [0.5])
    write_run(tmp_path / "b", experiment("fedavg", dataset="cifar10"), [0.5])
    with pytest.raises(UserError, match="dataset = cifar10 in the one, digits in the other"):
        groups_in(tmp_path)


def test_memory_is_measured_and_smaller_for_fedmef(tmp_path: Path) -> None:
    write_run(tmp_path / "a", experiment("fedavg"), [0.5])
    write_run(tmp_path / "b", experiment("fedmef"), [0.5])
    dense, sparse = (group.memory for group in groups_in(tmp_path))
    assert isinstance(dense, DeviceMemory)
    assert isinstance(sparse, DeviceMemory)
    assert sparse.parameters < dense.parameters
    assert sparse.gradients < dense.gradients
    assert sparse.activations < dense.activations
    assert dense.kept == dense.parameters + dense.gradients + dense.activations
    for memory in (dense, sparse):
        assert (
            memory.peak > memory.parameters + memory.activations
        )  # alive at once at the end of a forward pass


@pytest.mark.parametrize("method", ["fedavg", "fedmef"])
def test_the_peak_is_the_one_that_fedmef_cost_shows_adjustments_included(tmp_path: Path, method: str) -> None:
    asked = experiment(method, batch_size=32, adjust_every=1, adjust_until=2)
    write_run(tmp_path / "a", asked, [0.5, 0.5])
    (group,) = groups_in(tmp_path)
    assert isinstance(group.memory, DeviceMemory)
    cost = measure_step(asked.model_copy(update={"rounds": 2}), (1, 8, 8), 10, steps=2)
    assert group.memory.peak == pytest.approx(cost.peak, rel=0.01)
    assert group.memory.kept == cost.parameters + cost.gradients + cost.cache


def test_memory_of_a_method_that_is_gone_says_why_it_is_not_measured(tmp_path: Path) -> None:
    write_run(tmp_path / "a", experiment("gone:Method"), [0.5])
    (group,) = groups_in(tmp_path)
    assert isinstance(group.memory, str)
    assert "there is no module 'gone'" in group.memory


def test_the_estimate_of_a_run_is_that_of_its_own_rounds(tmp_path: Path) -> None:
    write_run(tmp_path / "a", experiment("fedavg"), [0.5, 0.5])
    settings = {"adjust_every": 1, "adjust_until": 2}
    write_run(tmp_path / "b", experiment("fedtiny", **settings), [0.5, 0.5], {1: (0.5, 0.5)})
    write_run(tmp_path / "c", experiment("feddst", **settings), [0.5, 0.5], {1: (0.5, 0.5)})
    dense, feddst, fedtiny = (group.estimated for group in groups_in(tmp_path))
    assert dense
    assert feddst
    assert fedtiny
    # small_cnn of width 4: 36 weights of the stem, 288 and 1,152 that are sparse, 56 of BatchNorm, 170.
    assert dense.exchange == 2 * (36 + 288 + 1152 + 56 + 170) * 4
    assert feddst.exchange == 2 * (36 + 56 + 170) * 4 + 2 * (288 + 28 * 32 + 1152 + 115 * 32) / 8
    # One round of two adjusts, with ζ = 0.2: 5 of 28 and 23 of 115 gradients, and their positions.
    assert fedtiny.exchange - feddst.exchange == (5 * (32 + 9) + 23 * (32 + 11)) / 8 / 2
    # 8 images of 64 pixels, of which the last layer sees 16; forwards, and twice that backwards.
    assert dense.step_flops == 3 * 8 * (36 * 64 + 288 * 64 + 1152 * 16 + 160)
    assert fedtiny.step_flops == 3 * 8 * (36 * 64 + 28 * 64 + 115 * 16 + 160)


def test_a_method_without_a_formula_has_no_estimate(tmp_path: Path) -> None:
    write_run(tmp_path / "a", experiment("gone:Method"), [0.5])
    assert groups_in(tmp_path)[0].estimated is None
