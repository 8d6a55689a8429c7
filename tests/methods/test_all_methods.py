"""What holds for every method of the table, and what tells them apart."""

import copy
import dataclasses
from pathlib import Path

import pytest
import torch
from torch import nn

import fedmef
from fedmef.costs import bytes_kept_for_backward
from fedmef.experiment.settings import Experiment
from fedmef.methods import METHODS, build_method
from fedmef.methods.base import Plan
from fedmef.models import build_model
from fedmef.nn import BatchNorm2d, SparseConv2d, sparse_layers
from fedmef.nn.normalization import FilterNormalization

DENSE = {"fedavg", "fedavg_sap", "zerofl"}
STATIC = DENSE | {"fl_pqsu"}
NORMALIZED = {"fedavg_sap", "fedmef", "fedmef_no_bae", "fedmef_restart"}
PRUNED_CACHES = NORMALIZED | {"fedmef_no_sap", "zerofl"}

SMALL = {"width": 8, "devices": 4, "devices_per_round": 3, "local_epochs": 1, "engine": "inline"}


def prepared(name: str, seed: int = 0) -> nn.Module:
    experiment = Experiment(method=name, seed=seed)
    network = build_model("small_cnn", classes=10, channels=1, width=8, seed=seed)
    return build_method(experiment).prepare(network)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_trains_and_keeps_its_density(name: str, tmp_path: Path) -> None:
    experiment = Experiment(**SMALL, method=name, rounds=4, adjust_every=1, adjust_until=9, learning_rate=0.2)  # type: ignore[arg-type]
    run = fedmef.run(experiment, tmp_path / "run")
    assert run.metrics[-1]["train_loss"] < run.metrics[0]["train_loss"]
    assert len({record["active_weights"] for record in run.metrics}) == 1
    assert run.summary["adjustments"] == (0 if name in STATIC else 3)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_trains_when_nothing_is_pruned(name: str, tmp_path: Path) -> None:
    experiment = Experiment(**SMALL, method=name, rounds=2, adjust_every=1, adjust_until=9, sparsity=0.0)  # type: ignore[arg-type]
    run = fedmef.run(experiment.model_copy(update={"learning_rate": 0.2}), tmp_path / "run")
    assert run.summary["adjustments"] == 0
    assert run.summary["parameters"] == run.summary["parameters_if_dense"]


@pytest.mark.parametrize("name", METHODS)
def test_a_method_says_itself_what_it_is(name: str) -> None:
    method = METHODS[name]
    assert method.normalized == (name in NORMALIZED)
    assert method.dense == (name in {"fedavg", "fedavg_sap"})
    assert method.devices_adjust == (name == "feddst")


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_the_network_of_the_papers_table(name: str) -> None:
    model = prepared(name)
    assert any(isinstance(module, BatchNorm2d) for module in model.modules()) == (name not in NORMALIZED)
    layers = sparse_layers(model).values()
    assert any(layer.density < 1 for layer in layers) == (name not in DENSE)
    assert any(layer.cache.sparsity > 0 for layer in layers) == (name in PRUNED_CACHES)


@pytest.mark.parametrize("name", METHODS)
def test_only_a_method_that_prunes_activations_keeps_fewer_of_them(name: str) -> None:
    images = torch.randn(8, 1, 8, 8)
    kept = bytes_kept_for_backward(prepared(name).train(), images)
    dense = bytes_kept_for_backward(prepared("fedavg").train(), images)
    assert kept < dense if name in PRUNED_CACHES else kept == dense


def test_all_randomly_pruned_methods_start_with_the_same_weights() -> None:
    random = [name for name in METHODS if name not in STATIC]
    states = [sparse_layers(prepared(name)) for name in random]
    for state in states[1:]:
        for layer in state.keys() & states[0].keys():
            assert torch.equal(state[layer].mask, states[0][layer].mask)
            # but for the mean of an NSConv filter, which the network does not see
            values = [copy.deepcopy(one[layer]) for one in (state, states[0])]
            for one in values:
                one.geometry = dataclasses.replace(one.geometry, normalization=FilterNormalization())
            torch.testing.assert_close(values[0].dense_weight(), values[1].dense_weight())


def test_fl_pqsu_keeps_the_largest_initial_weights_for_ever(tmp_path: Path) -> None:
    dense = dict(build_model("small_cnn", classes=10, channels=1, width=8, seed=0).named_parameters())
    pruned = sparse_layers(prepared("fl_pqsu"))
    for name, layer in pruned.items():
        weight = dense[f"{name}.weight"].detach().flatten()
        assert layer.values.abs().min() >= weight.abs().sort().values[-layer.active_count]
    experiment = Experiment(**SMALL, method="fl_pqsu", rounds=3, adjust_every=1, learning_rate=0.2)  # type: ignore[arg-type]
    trained = fedmef.run(experiment, tmp_path / "run").model_state()
    assert all(torch.equal(trained[f"{name}.mask"], layer.mask) for name, layer in pruned.items())


class RecordedTraining:
    """Stands for LocalTraining: notes what a method asks of it."""

    def __init__(self) -> None:
        layer = SparseConv2d(1, 2, (1, 4), bias=False, sparsity=0.5)
        layer.assign(torch.tensor([0, 2, 5, 7]), torch.tensor([0.5, -0.1, 0.2, -3.0]))
        self.model = nn.Sequential(layer)
        self.penalties: list[float] = []
        self.rates: list[float] = []
        self.asked: dict[str, int] = {}

    def steps(self, epochs: float) -> int:
        return int(epochs) * 10

    def fit(self, epochs: float, *, penalty: object = None, learning_rate: object = None) -> None:
        if callable(penalty):
            self.penalties.append(float(penalty().detach()))
        if callable(learning_rate):
            self.rates.append(float(learning_rate(0)))

    def growth_scores(self, counts: dict[str, int]) -> dict[str, object]:
        self.asked = counts
        return {}


ADJUSTING = Plan(round=5, learning_rate=0.01, adjustment_rate=0.5)


@pytest.mark.parametrize(
    ("name", "extrudes", "penalizes"),
    [
        ("fedtiny", False, False),
        ("fedmef", True, True),
        ("fedmef_no_bae", False, False),
        ("fedmef_no_sap", True, True),
        ("fedmef_restart", True, False),
    ],
)
def test_extrusion_is_what_tells_the_ablations_apart(name: str, extrudes: bool, penalizes: bool) -> None:
    local = RecordedTraining()
    experiment = Experiment(method=name, learning_rate=1.0, extrusion=0.4)
    build_method(experiment).train(local, ADJUSTING)  # type: ignore[arg-type]
    assert local.asked == {"0": 2}
    # |θ_low|² = 0.1² + 0.2² = 0.05
    assert local.penalties == pytest.approx([0.02 if penalizes else 0.0] if extrudes else [])
    assert all(rate > ADJUSTING.learning_rate for rate in local.rates)
    assert bool(local.rates) == extrudes


def test_nothing_is_extruded_or_sent_between_adjustments() -> None:
    local = RecordedTraining()
    extras = build_method(Experiment()).train(local, Plan(round=1, learning_rate=0.1))  # type: ignore[arg-type]
    assert (local.penalties, local.rates, local.asked, extras.growth) == ([], [], {}, {})
