from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedmef
from fedmef.errors import FedmefError
from fedmef.experiment.settings import Experiment
from fedmef.methods.base import Extras, Plan, Update
from fedmef.methods.prunefl import PruneFL, choose_positions, layer_times, squared_gradients
from fedmef.models import build_model
from fedmef.nn import SparseConv2d, sparse_layers

PLAN = Plan(round=5, learning_rate=0.1, adjustment_rate=0.4)


def model() -> nn.Sequential:
    first, second = (SparseConv2d(1, 1, (1, 4), bias=False, sparsity=0.5) for _ in range(2))
    first.assign(torch.tensor([0, 1]), torch.tensor([1.0, 2.0]))
    second.assign(torch.tensor([2, 3]), torch.tensor([3.0, -4.0]))
    return nn.Sequential(first, second)


def update(samples: int, first: list[float], second: list[float], times: tuple[float, float]) -> Update:
    tensors = {
        "0.importance": torch.tensor(first),
        "1.importance": torch.tensor(second),
        "0.time": torch.tensor(times[0]),
        "1.time": torch.tensor(times[1]),
    }
    return Update(1, samples, 0.0, {}, Extras(tensors=tensors))


def test_the_largest_ratios_of_all_layers_are_chosen() -> None:
    ratios = {"a": torch.tensor([5.0, 1.0, 4.0]), "b": torch.tensor([0.0, 3.0, 2.0])}
    assert {name: chosen.tolist() for name, chosen in choose_positions(ratios, 3).items()} == {
        "a": [0, 2],
        "b": [1],
    }


def test_every_layer_keeps_its_best_weight() -> None:
    ratios = {"a": torch.tensor([5.0, 7.0, 4.0]), "b": torch.tensor([0.1, 0.2])}
    assert choose_positions(ratios, 2)["b"].tolist() == [1]


def test_importance_is_averaged_by_samples_and_divided_by_time() -> None:
    adjusted = model()
    updates = [
        update(1, [8.0, 0.0, 0.0, 8.0], [1.0, 1.0, 1.0, 1.0], (4.0, 1.0)),
        update(3, [0.0, 0.0, 0.0, 8.0], [1.0, 1.0, 0.0, 0.0], (4.0, 1.0)),
    ]
    # averages [2, 0, 0, 8] / 4 = [0.5, 0, 0, 2] and [1, 1, 0.25, 0.25] / 1: four stay
    adjustment = PruneFL(Experiment()).adjust(adjusted, updates, PLAN)
    layers = sparse_layers(adjusted)
    assert layers["0"].active_positions().tolist() == [0, 3]
    assert layers["0"].values.tolist() == [1.0, 0.0]
    assert layers["1"].active_positions().tolist() == [0, 1]
    assert layers["1"].values.tolist() == [0.0, 0.0]
    assert adjustment.exchanged == 3
    assert adjustment.dropped_magnitude == pytest.approx((2 + 3 + 4) / 3)


def test_weights_move_between_layers_but_never_become_more() -> None:
    adjusted = model()
    PruneFL(Experiment()).adjust(adjusted, [update(1, [9.0] * 4, [0.1] * 4, (1.0, 1.0))], PLAN)
    assert [layer.active_count for layer in sparse_layers(adjusted).values()] == [3, 1]


def test_a_layer_that_became_dense_can_be_pruned_again() -> None:
    adjusted, method = model(), PruneFL(Experiment())
    method.adjust(adjusted, [update(1, [9.0] * 4, [0.1] * 4, (1.0, 1.0))], PLAN)
    wider = SparseConv2d(1, 1, (1, 8), bias=False, sparsity=0.5)
    grown = nn.Sequential(adjusted[0], wider)
    importances = {"0.importance": torch.full((4,), 9.0), "1.importance": torch.full((8,), 0.1)}
    importances |= {"0.time": torch.tensor(1.0), "1.time": torch.tensor(1.0)}
    method.adjust(grown, [Update(1, 1, 0.0, {}, Extras(tensors=importances))], PLAN)
    assert [layer.active_count for layer in sparse_layers(grown).values()] == [4, 3]
    importances |= {"0.importance": torch.full((4,), 0.1), "1.importance": torch.full((8,), 9.0)}
    method.adjust(grown, [Update(1, 1, 0.0, {}, Extras(tensors=importances))], PLAN)
    assert [layer.active_count for layer in sparse_layers(grown).values()] == [1, 6]


def test_a_dropped_zero_is_logged_too() -> None:
    adjusted = model()
    layer = adjusted[0]
    assert isinstance(layer, SparseConv2d)
    layer.assign(torch.tensor([0, 1]), torch.tensor([0.0, 2.0]))
    adjustment = PruneFL(Experiment()).adjust(
        adjusted, [update(1, [0.0, 0.0, 9.0, 9.0], [0.0, 0.0, 9.0, 9.0], (1.0, 1.0))], PLAN
    )
    assert (adjustment.exchanged, adjustment.dropped_magnitude) == (2, 1.0)  # of 0 and 2


class TwoSteps:
    """Stands for LocalTraining: two steps, in which each squared gradient of the layer is 4."""

    def __init__(self) -> None:
        self.model = nn.Sequential(SparseConv2d(1, 1, (1, 4), bias=False, sparsity=0.5))

    def steps(self, epochs: float) -> int:
        return 2

    def fit(self, epochs: float) -> None:
        for _ in range(2):
            self.model.zero_grad()
            self.model(torch.full((1, 1, 1, 4), 2.0)).sum().backward()


def test_importance_is_a_mean_over_steps_so_that_samples_count_once() -> None:
    extras = PruneFL(Experiment()).train(TwoSteps(), PLAN)  # type: ignore[arg-type]
    assert extras.tensors["0.importance"].tolist() == [4.0] * 4


def test_squared_gradients_are_those_of_the_dense_layer() -> None:
    torch.manual_seed(0)
    layer = SparseConv2d(2, 3, 3, bias=False, sparsity=0.6)
    batches = [torch.randn(2, 2, 5, 5) for _ in range(2)]
    with squared_gradients({"0": layer}) as sums, layer_times({"0": layer}) as times:
        for images in batches:
            layer.zero_grad()
            layer(images).square().sum().backward()
    expected = torch.zeros(layer.geometry.size)
    for images in batches:
        weight = layer.dense_weight().requires_grad_()
        F.conv2d(images, weight).square().sum().backward()  # type: ignore[no-untyped-call]
        assert weight.grad is not None
        expected += weight.grad.flatten().square()
    torch.testing.assert_close(sums["0"], expected)
    assert times == {"0": 9}
    assert layer.observe_growth is None


@pytest.mark.parametrize("wrong", [{}, {"0.importance": torch.tensor([float("nan")] * 4)}])
def test_a_wrong_importance_stops_the_run(wrong: dict[str, torch.Tensor]) -> None:
    good = update(1, [1.0] * 4, [1.0] * 4, (1.0, 1.0)).extras.tensors if wrong else {}
    bad = Update(7, 1, 0.0, {}, Extras(tensors={**good, **wrong}))
    with pytest.raises(FedmefError, match="device 7 sent"):
        PruneFL(Experiment()).adjust(model(), [bad], PLAN)


def test_a_model_whose_weights_moved_goes_to_devices_and_back_from_disk(tmp_path: Path) -> None:
    experiment = Experiment.model_validate(
        {
            "method": "prunefl",
            "width": 8,
            "devices": 4,
            "devices_per_round": 2,
            "local_epochs": 1,
            "rounds": 5,
            "adjust_every": 1,
            "learning_rate": 0.2,
            "engine": "inline",
        }
    )
    run = fedmef.run(experiment, tmp_path / "run")
    counts = [layer["active"] for layer in run.summary["layers"].values()]
    fresh = [layer.active_count for layer in sparse_layers(fedmef.load(run.path)).values()]
    assert counts == fresh
    start = build_model("small_cnn", classes=10, channels=1, width=8, seed=0)
    first = [layer.active_count for layer in sparse_layers(PruneFL(experiment).prepare(start)).values()]
    assert counts != first
    assert sum(counts) == sum(first)
