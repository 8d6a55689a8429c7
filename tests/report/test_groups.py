import re
from pathlib import Path
from typing import Any

import pytest

from fedmef.costs import device_process
from fedmef.costs.device_process import ProcessCost
from fedmef.costs.tensors import TensorCost
from fedmef.errors import UserError
from fedmef.report import groups as groups_module
from fedmef.report.groups import (
    Spread,
    accuracy_after_adjustments,
    accuracy_before_adjustments,
    accuracy_over_rounds,
    group_runs,
    layer_densities,
)
from fedmef.report.reading import read_runs
from fedmef.sparsity.model import Model
from fedmef.studies import find_study
from tests.costs.formula import process
from tests.report.reading import groups_in
from tests.runs.written import NETWORK
from tests.small import small, write_run

pytestmark = pytest.mark.usefixtures("no_figures")


def test_seeds_make_one_group_with_mean_and_sample_deviation(tmp_path: Path) -> None:
    write_run(tmp_path / "a", small(seed=0), [None, 0.5])
    write_run(tmp_path / "b", small(seed=1), [None, 0.7])
    (group,) = groups_in(tmp_path)
    assert group.name == "fedmef 0.9"
    # (0.5 + 0.7) / 2, and sqrt((0.1² + 0.1²) / 1)
    (spread,) = accuracy_over_rounds(group)
    assert spread.round == 2
    assert spread.mean == pytest.approx(0.6)
    assert spread.deviation == pytest.approx(0.02**0.5)


def test_one_seed_has_no_deviation(tmp_path: Path) -> None:
    write_run(tmp_path / "a", small(), [0.25, 0.5])
    assert accuracy_over_rounds(groups_in(tmp_path)[0]) == [Spread(1, 0.25, None), Spread(2, 0.5, None)]


def test_methods_and_sparsities_are_groups_and_dense_methods_have_no_sparsity(tmp_path: Path) -> None:
    write_run(tmp_path / "a", small("fedmef", sparsity=0.9), [0.5])
    write_run(tmp_path / "b", small("fedmef", sparsity=0.8), [0.5])
    write_run(tmp_path / "c", small("fedavg", sparsity=0.9), [0.5])
    assert [group.name for group in groups_in(tmp_path)] == ["fedavg", "fedmef 0.8", "fedmef 0.9"]


@pytest.mark.parametrize("name", ["heterogeneity", "local_epochs", "selected_clients", "marked_magnitude"])
def test_a_study_can_be_reported_though_its_cases_share_method_and_sparsity(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups_module, "measure_tensors", lambda *_: TensorCost(1, 1, 1, 1))
    experiments = find_study(name).experiments("smoke")
    for directory, asked in experiments.items():
        write_run(tmp_path / directory, asked, [0.5] * asked.rounds)
    names = [group.name for group in groups_in(tmp_path)]
    assert len(names) == len(set(names)) == len(experiments)


def test_variants_are_in_the_order_of_their_values(tmp_path: Path) -> None:
    for period in (10, 3, 5):
        write_run(tmp_path / str(period), small(adjust_every=period), [0.5])
    assert [group.row.variant for group in groups_in(tmp_path)] == [
        f"adjust_every {period}" for period in (3, 5, 10)
    ]


def test_adjustments_are_paired_before_and_after(tmp_path: Path) -> None:
    write_run(tmp_path / "a", small(seed=0), [0.3, 0.3], {1: (0.5, 0.25)})
    write_run(tmp_path / "b", small(seed=1), [0.3, 0.3], {1: (0.7, 0.75)})
    (group,) = groups_in(tmp_path)
    (before,), (after,) = accuracy_before_adjustments(group), accuracy_after_adjustments(group)
    assert (before.round, after.round) == (2, 2)
    assert before.mean == pytest.approx(0.6)
    assert after.mean == pytest.approx(0.5)


def test_densities_are_active_weights_over_size(tmp_path: Path) -> None:
    write_run(tmp_path / "a", small(seed=0), [0.5], layers={"conv": (1, 4), "last": (4, 4)})
    write_run(tmp_path / "b", small(seed=1), [0.5], layers={"conv": (3, 4), "last": (4, 4)})
    assert layer_densities(groups_in(tmp_path)[0]) == {"conv": 0.5, "last": 1.0}


def test_runs_of_different_data_are_refused_with_the_difference(tmp_path: Path) -> None:
    write_run(tmp_path / "a", small(dataset="digits"), [0.5])
    write_run(tmp_path / "b", small("fedavg", dataset="cifar10"), [0.5])
    with pytest.raises(UserError, match="dataset = cifar10 in the one, digits in the other"):
        groups_in(tmp_path)


def test_memory_is_measured_and_smaller_for_fedmef(tmp_path: Path) -> None:
    write_run(tmp_path / "a", small("fedavg"), [0.5])
    write_run(tmp_path / "b", small("fedmef"), [0.5])
    dense, sparse = (group.memory for group in groups_in(tmp_path))
    assert isinstance(dense, TensorCost)
    assert isinstance(sparse, TensorCost)
    assert sparse.parameters < dense.parameters
    assert sparse.gradients < dense.gradients
    assert sparse.cache < dense.cache
    assert dense.kept == dense.parameters + dense.gradients + dense.cache
    for memory in (dense, sparse):
        assert memory.peak > memory.parameters + memory.cache  # alive at once at the end of a forward pass


def test_the_whole_process_stands_next_to_that_of_pytorchs_dense_device(tmp_path: Path) -> None:
    write_run(tmp_path / "a", small("fedmef"), [0.5])
    (group,) = groups_in(tmp_path)
    assert isinstance(group.process, ProcessCost)
    assert isinstance(group.dense, ProcessCost)
    assert (group.process.process, group.process.backend) == (40_000_000, "native")
    assert (group.dense.process, group.dense.backend) == (300_000_000, "torch")


@pytest.mark.parametrize(
    ("allow_code", "reason"), [(False, "runs no code .*'gone:Method'"), (True, "there is no module 'gone'")]
)
def test_memory_of_a_method_of_ones_own_says_why_it_is_not_measured(
    tmp_path: Path, allow_code: bool, reason: str
) -> None:
    write_run(tmp_path / "a", small("gone:Method"), [0.5])
    (group,) = group_runs(read_runs([tmp_path]).runs, allow_code=allow_code)
    for memory in (group.memory, group.process):
        assert isinstance(memory, str)
        assert re.search(reason, memory)


def test_a_network_of_ones_own_is_measured_as_the_run_has_it_without_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Model | None] = []

    def measured(experiment: object, shape: object, classes: int, model: Model | None) -> ProcessCost:
        given.append(model)
        return process(40e6)

    monkeypatch.setattr(device_process, "_measured", measured)
    shape = list(NETWORK.input.shape)
    write_run(tmp_path / "a", small(model="gone:network", width=None), [0.5], classes=2, image_shape=shape)
    (group,) = groups_in(tmp_path)
    assert isinstance(group.memory, TensorCost)
    assert group.memory.parameters == 2 * 4 + 1 + 2 * 4  # two active weights, a byte of mask, two biases
    assert isinstance(group.process, ProcessCost)
    assert [model and model.network for model in given] == [NETWORK]
    assert group.estimated is not None
    assert group.dense == "a report runs no code that a run names (model = 'gone:network')"


def test_a_network_of_ones_own_that_is_too_large_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedmef.report.size.MOST_ACTIVATIONS", 1000)
    settings: dict[str, Any] = {"model": "gone:network", "width": None}
    write_run(tmp_path / "a", small(**settings), [0.5], classes=2, image_shape=list(NETWORK.input.shape))
    write_run(tmp_path / "b", small("fedavg", **settings), [0.5], classes=2, image_shape=[1, 9, 9])
    first, second = groups_in(tmp_path)  # fedavg comes first
    for group, reason in ((second, "too much for a report"), (first, "another shape of images")):
        assert isinstance(group.process, str)
        assert reason in group.process
        assert group.estimated is None


def test_a_damaged_network_of_ones_own_is_not_measured_and_said(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", small(model="gone:network", width=None), [0.5])
    (run.path / "network.json").write_text("{")
    (group,) = groups_in(tmp_path)
    assert group.process == "a report runs no code that a run names (model = 'gone:network')"
