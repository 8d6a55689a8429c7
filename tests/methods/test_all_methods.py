"""What holds for every method of the table, and what tells them apart."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedmef
from fedmef.costs.allocator import bytes_kept_for_backward
from fedmef.device.backend import Step
from fedmef.errors import RejectedError, UserError
from fedmef.experiment.settings import Experiment
from fedmef.methods import METHODS, find_builtin_method, find_method, weight_sparsity
from fedmef.methods.base import Method
from fedmef.methods.extrusion import Pull
from fedmef.models import build_model
from fedmef.models.initial import initial_model
from fedmef.nn import BatchNorm2d, sparse_layers
from fedmef.nn.normalization import FilterNormalization
from fedmef.nn.prepare import prepare
from fedmef.sparsity.growth import GrowthScores
from fedmef.sparsity.model import Model
from fedmef.wire.job import Job
from fedmef.wire.update import Extras, Update
from tests.methods.small_models import ADJUSTING, MEAN, ORDINARY, floats, layer_model, with_batchnorm

DENSE = {"fedavg", "fedavg_sap", "zerofl"}
STATIC = DENSE | {"fl_pqsu"}
NORMALIZED = {"fedavg_sap", "fedmef", "fedmef_no_bae", "fedmef_restart"}
PRUNED_CACHES = NORMALIZED | {"fedmef_no_sap", "zerofl"}

SMALL = {"width": 8, "devices": 4, "devices_per_round": 3, "local_epochs": 1, "engine": "inline"}


def plain() -> nn.Module:
    return build_model("small_cnn", classes=10, channels=1, width=8, seed=0)


def prepared(name: str) -> nn.Module:
    return prepare(plain(), find_method(name).recipe, Experiment(method=name))


@pytest.mark.parametrize("name", METHODS)
def test_a_method_trains_and_keeps_its_density(name: str, tmp_path: Path) -> None:
    experiment = Experiment(**SMALL, method=name, rounds=4, adjust_every=1, adjust_until=9, learning_rate=0.2)  # type: ignore[arg-type]
    run = fedmef.run(experiment, tmp_path / "run")
    losses = [record.train_loss or np.inf for record in run.rounds]
    # PruneFL puts most weights elsewhere every time, at 0: that often, it unlearns as much as it learns.
    assert losses[1 if name == "prunefl" else -1] < losses[0]
    assert len({record.active_weights for record in run.rounds}) == 1
    assert run.summary.adjustments == (0 if name in STATIC else 3)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_trains_when_nothing_is_pruned(name: str, tmp_path: Path) -> None:
    experiment = Experiment(**SMALL, method=name, rounds=2, adjust_every=1, adjust_until=9, sparsity=0.0)  # type: ignore[arg-type]
    run = fedmef.run(experiment.model_copy(update={"learning_rate": 0.2}), tmp_path / "run")
    assert run.summary.adjustments == 0
    assert run.summary.parameters == run.summary.parameters_if_dense


@pytest.mark.parametrize("name", METHODS)
def test_a_method_says_itself_what_it_is(name: str) -> None:
    method = find_builtin_method(name)
    assert (method.recipe.norm == "nsconv") == (name in NORMALIZED)
    assert method.recipe.prune_activations == (name in PRUNED_CACHES)
    assert method.recipe.plain == (name == "fedavg")
    assert method.recipe.has_sparsity == (name not in {"fedavg", "fedavg_sap"})
    assert weight_sparsity(Experiment(method=name)) == (0.9 if method.recipe.has_sparsity else 0.0)
    assert method.devices_adjust == (name == "feddst")
    assert method.own_merge == (name in {"feddst", "zerofl"})
    assert method.fixed_layer_counts == (name != "prunefl")
    assert method.needs_torch == (name in {"prunefl", "zerofl"})


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_no_state(name: str) -> None:
    """Whatever a device must know is in the job: any object of the class is as good as another."""
    method = find_builtin_method(name)()
    method.job(Experiment(method=name), 3)
    assert vars(method) == {}


@pytest.mark.parametrize("name", METHODS)
def test_masks_are_adjusted_when_the_experiment_says_so(name: str) -> None:
    experiment = Experiment(method=name, rounds=20, adjust_every=4, learning_rate=0.5, extrusion=0.3)
    jobs = [find_builtin_method(name)().job(experiment, round_number) for round_number in range(20)]
    adjusted = [job.round for job in jobs if job.adjusts]
    assert adjusted == ([] if name in STATIC else [4, 8])  # at 12, the last one allowed, the rate is 0
    assert [job.round for job in jobs] == list(range(20))
    assert {(job.method, job.initial_rate, job.extrusion) for job in jobs} == {(name, 0.5, 0.3)}
    assert jobs[10].learning_rate == pytest.approx(0.5 * 0.95)
    if adjusted:
        assert jobs[4].adjustment_rate == pytest.approx(0.2 * (1 + np.cos(np.pi / 3)))


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
            for one in (state[layer], states[0][layer]):
                one.geometry = dataclasses.replace(one.geometry, normalization=FilterNormalization())
            torch.testing.assert_close(state[layer].dense_weight(), states[0][layer].dense_weight())


def test_fl_pqsu_keeps_the_largest_initial_weights_for_ever(tmp_path: Path) -> None:
    dense = dict(plain().named_parameters())
    pruned = sparse_layers(prepared("fl_pqsu"))
    for name, layer in pruned.items():
        weight = dense[f"{name}.weight"].detach().flatten()
        assert layer.values.abs().min() >= weight.abs().sort().values[-layer.active_count]
    experiment = Experiment(**SMALL, method="fl_pqsu", rounds=3, adjust_every=1, learning_rate=0.2)  # type: ignore[arg-type]
    trained = fedmef.run(experiment, tmp_path / "run").model()
    for name, layer in pruned.items():
        np.testing.assert_array_equal(trained.masks()[name], layer.mask.numpy())


class RecordedTraining:
    """Stands for LocalTraining: notes what a method asks of it."""

    def __init__(self) -> None:
        self.model = layer_model([0, 2, 5, 7], [0.5, -0.1, 0.2, -3.0])
        self.first: list[tuple[float, Pull | None]] = []
        self.second: list[tuple[float, Pull | None]] = []
        self.epochs: list[float] = []
        self.asked: dict[str, int] = {}

    def steps(self, epochs: float) -> int:
        return int(epochs) * 10

    def layer(self, name: str) -> Model:
        return self.model

    def fit(self, epochs: float, *, schedule: Callable[[int, Step | None], Any] | None = None) -> None:
        self.epochs.append(epochs)
        if schedule is not None:
            self.first.append(schedule(0, None))
            self.second.append(schedule(1, Step(loss=1.0, pulled_norm=0.0)))

    def growth_scores(self, counts: dict[str, int]) -> dict[str, GrowthScores]:
        self.asked = counts
        return {}


@pytest.mark.parametrize(
    ("name", "strength"),
    [
        ("fedtiny", None),
        ("fedmef", 0.4),
        ("fedmef_no_bae", None),
        ("fedmef_no_sap", 0.4),
        ("fedmef_restart", 0.0),
    ],
)
def test_extrusion_is_what_tells_the_ablations_apart(name: str, strength: float | None) -> None:
    local = RecordedTraining()
    find_builtin_method(name)().train(local, ADJUSTING)  # type: ignore[arg-type]
    assert local.asked == {"0": 2}
    assert local.epochs == [1]
    if strength is None:
        assert local.first == []
        return
    (rate, pull), (later, _) = local.first[0], local.second[0]
    assert pull is not None
    assert pull.strength == strength
    assert sorted(pull.marked["0"].tolist()) == [1, 2]  # −0.1 and 0.2
    assert rate == pytest.approx(np.tanh(np.sqrt(0.05) / 2))  # of η₀ = 1
    assert rate > ADJUSTING.learning_rate
    assert later == ADJUSTING.learning_rate  # nothing is left in what is marked


@pytest.mark.parametrize("name", sorted(METHODS.keys() - {"zerofl", "prunefl", "feddst"}))
def test_nothing_is_extruded_or_sent_between_adjustments(name: str) -> None:
    local = RecordedTraining()
    extras = find_builtin_method(name)().train(local, ORDINARY)  # type: ignore[arg-type]
    assert (local.first, local.epochs, local.asked) == ([], [1], {})
    assert extras == Extras()


def update(device: int, samples: int, model: Model, value: float, extras: Extras | None = None) -> Update:
    weights = {name: np.full_like(model.state[name], value) for name in model.network.floats}
    return Update(device, samples, 0.0, weights, extras or Extras())


@pytest.mark.parametrize("name", sorted(METHODS.keys() - {"zerofl"}))
def test_updates_are_averaged_by_their_samples(name: str) -> None:
    model = with_batchnorm([0, 2, 5, 7], [1.0] * 4)
    before, mask = dict(model.state), model.state["0.mask"].copy()
    updates = [update(0, 1, model, 4.0), update(1, 3, model, 8.0)]
    find_builtin_method(name)().aggregate(model, updates, MEAN)
    for key in model.network.floats:
        np.testing.assert_array_equal(model.state[key], np.full_like(model.state[key], 7.0))
        assert (before[key] == 1).all()  # arrays are replaced, never changed
    np.testing.assert_array_equal(model.state["0.mask"], mask)
    assert model.state["1.num_batches_tracked"] == 1  # a counter stays where it is


@pytest.mark.parametrize("name", sorted(METHODS.keys() - {"zerofl"}))
def test_extras_that_a_method_did_not_ask_for_are_refused(name: str) -> None:
    model, method = with_batchnorm([0, 2, 5, 7], [1.0] * 4), find_builtin_method(name)()
    method.check(model, update(0, 1, model, 4.0), ORDINARY)
    for extras in (Extras(arrays={"x": floats(1.0)}), Extras(masks={"0": model.state["0.mask"]})):
        with pytest.raises(RejectedError, match="device 0 sent an unexpected"):
            method.check(model, update(0, 1, model, 4.0, extras), ORDINARY)


def test_a_method_that_overrides_nothing_is_fedavg() -> None:
    model = with_batchnorm([0, 2, 5, 7], [1.0] * 4)
    assert Method().adjust(model, [], ORDINARY, MEAN) is None
    assert Method().withheld(model.network) == frozenset()
    assert Method.recipe == find_builtin_method("fedavg").recipe


def test_only_our_own_methods_are_found_on_a_device() -> None:
    with pytest.raises(UserError, match="unknown method 'fedmeff': did you mean 'fedmef'"):
        find_builtin_method("fedmeff")
    with pytest.raises(UserError, match="unknown method"):
        find_builtin_method(f"{__name__}:Own")
    assert find_method(f"{__name__}:Own") is Own
    with pytest.raises(UserError, match="must be a subclass of"):
        find_method(f"{__name__}:RecordedTraining")


class Own(Method):
    """A user's own."""


@pytest.mark.parametrize("name", ["fedmef", "fedtiny", "prunefl", "feddst", "fedavg"])
def test_a_frozen_layer_goes_through_every_method(name: str, tmp_path: Path) -> None:
    experiment = Experiment(
        **SMALL,  # type: ignore[arg-type]
        **{"method": name, "rounds": 2, "adjust_every": 1, "adjust_until": 9, "sparsity": 0.5},  # type: ignore[arg-type]
    ).model_copy(update={"model": f"{__name__}:partly_frozen", "width": None})
    run = fedmef.run(experiment, tmp_path / "run")
    statistics = run.network.input.mean, run.network.input.std
    start, end = initial_model(experiment, (1, 8, 8), 10, statistics), run.model()
    assert run.network.frozen
    assert run.network.frozen == start.network.frozen
    for key in run.network.frozen:
        np.testing.assert_array_equal(end.state[key], start.state[key])
    np.testing.assert_array_equal(
        end.state.get("features.1.0.mask", 0), start.state.get("features.1.0.mask", 0)
    )
    assert run.rounds[-1].adjusted == (name != "fedavg")


def partly_frozen(*, classes: int, channels: int) -> nn.Module:
    network = build_model("small_cnn", classes=classes, channels=channels, width=8, seed=0)
    network.get_submodule("features.1.0").requires_grad_(False)
    return network


def test_a_job_says_everything_that_fedmef_needs() -> None:
    """Two devices with the same job do the same, whatever experiment the server has."""
    local, other = RecordedTraining(), RecordedTraining()
    job = Job(
        method="fedmef",
        round=5,
        seed=0,
        learning_rate=0.1,
        initial_rate=0.7,
        adjustment_rate=0.5,
        extrusion=0.2,
    )
    find_builtin_method("fedmef")().train(local, job)  # type: ignore[arg-type]
    find_builtin_method("fedmef")().train(other, dataclasses.replace(job, round=6))  # type: ignore[arg-type]
    assert local.first[0][0] == other.first[0][0]
    assert local.first[0][1] is not None
    assert local.first[0][1].strength == 0.2
