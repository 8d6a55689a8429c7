"""PruneFL: all positions are chosen again, by squared gradient per unit of time."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fedmef
from fedmef.device.training import LocalTraining, Samples
from fedmef.errors import RejectedError
from fedmef.experiment.settings import Experiment
from fedmef.methods.prunefl import PruneFL, choose_positions, layer_times, squared_gradients
from fedmef.models.initial import initial_model
from fedmef.nn import SparseConv2d, sparse_layers, sparsify
from fedmef.nn.backend import TorchBackend
from fedmef.sparsity.arrays import Array
from fedmef.sparsity.model import Model
from fedmef.wire.job import Job
from fedmef.wire.update import Extras, Update
from tests.methods.small_models import ADJUSTING, MEAN, ORDINARY, chain, floats, layer_model, two_layers
from tests.nn import networks
from tests.nn.prepared import exported

FIRST, SECOND = ([0, 1], [1.0, 2.0]), ([2, 3], [3.0, -4.0])


def update(samples: int, first: list[float], second: list[float]) -> Update:
    arrays = {"0.importance": floats(*first), "1.importance": floats(*second)}
    return Update(1, samples, 0.0, {}, Extras(arrays=arrays))


def active(model: Model) -> list[int]:
    return list(model.active_counts().values())


def test_the_largest_ratios_of_all_layers_are_chosen() -> None:
    ratios = {"a": floats(5.0, 1.0, 4.0), "b": floats(0.0, 3.0, 2.0)}
    assert {name: chosen.tolist() for name, chosen in choose_positions(ratios, 3).items()} == {
        "a": [0, 2],
        "b": [1],
    }


def test_every_layer_keeps_its_best_weight() -> None:
    ratios = {"a": floats(5.0, 7.0, 4.0), "b": floats(0.1, 0.2)}
    assert choose_positions(ratios, 2)["b"].tolist() == [1]


def test_time_is_a_multiply_add_for_each_output_pixel() -> None:
    assert layer_times(chain(FIRST, SECOND).network) == {"0": 4, "1": 1}
    # 16x16 images: a stem of stride 2 gives 7x7, and the last convolution is used twice
    times = layer_times(exported(sparsify(networks.Inception(), sparsity=0.5)).network)
    assert times == {"stem": 49, "wide": 49, "grouped": 49, "pooled": 49, "again": 98, "network": 1}


def test_importance_is_averaged_by_samples_and_divided_by_time() -> None:
    adjusted = chain(FIRST, SECOND)
    updates = [
        update(1, [8.0, 0.0, 0.0, 8.0], [1.0, 1.0, 1.0, 1.0]),
        update(3, [0.0, 0.0, 0.0, 8.0], [1.0, 1.0, 0.0, 0.0]),
    ]
    # averages [2, 0, 0, 8] / 4 = [0.5, 0, 0, 2] and [1, 1, 0.25, 0.25] / 1: four stay
    adjustment = PruneFL().adjust(adjusted, updates, ADJUSTING, MEAN)
    assert adjusted.positions("0").tolist() == [0, 3]
    assert adjusted.values("0").tolist() == [1.0, 0.0]
    assert adjusted.positions("1").tolist() == [0, 1]
    assert adjusted.values("1").tolist() == [0.0, 0.0]
    assert adjustment.exchanged == 3
    assert adjustment.dropped_magnitude == pytest.approx((2 + 3 + 4) / 3)


def test_weights_move_between_layers_but_never_become_more() -> None:
    adjusted = two_layers(FIRST, SECOND)
    PruneFL().adjust(adjusted, [update(1, [9.0] * 4, [0.1] * 4)], ADJUSTING, MEAN)
    assert active(adjusted) == [3, 1]


def test_a_layer_that_became_dense_can_be_pruned_again() -> None:
    grown = two_layers(([0, 1, 2], [1.0] * 3), ([0, 2, 4, 6], [1.0] * 4), filters=(1, 2))
    PruneFL().adjust(grown, [update(1, [9.0] * 4, [0.1] * 8)], ADJUSTING, MEAN)
    assert active(grown) == [4, 3]
    PruneFL().adjust(grown, [update(1, [0.1] * 4, [9.0] * 8)], ADJUSTING, MEAN)
    assert active(grown) == [1, 6]


def test_a_frozen_layer_takes_no_part() -> None:
    adjusted = two_layers(FIRST, SECOND, frozen=("0.values",))
    sent = Update(1, 1, 0.0, {}, Extras(arrays={"1.importance": floats(9.0, 9.0, 0.1, 0.1)}))
    PruneFL().check(adjusted, sent, ADJUSTING)
    assert PruneFL().adjust(adjusted, [sent], ADJUSTING, MEAN).exchanged == 2
    assert adjusted.positions("0").tolist() == [0, 1]
    assert adjusted.positions("1").tolist() == [0, 1]


def test_a_network_with_nothing_to_prune_is_not_adjusted() -> None:
    frozen = layer_model([0, 1], [1.0, 2.0], frozen=("0.values",))
    adjustment = PruneFL().adjust(frozen, [Update(1, 1, 0.0, {}, Extras())], ADJUSTING, MEAN)
    assert (adjustment.exchanged, adjustment.dropped_magnitude) == (0, None)


def test_a_dropped_zero_is_logged_too() -> None:
    adjusted = two_layers(([0, 1], [0.0, 2.0]), SECOND)
    adjustment = PruneFL().adjust(
        adjusted, [update(1, [0.0, 0.0, 9.0, 9.0], [0.0, 0.0, 9.0, 9.0])], ADJUSTING, MEAN
    )
    assert (adjustment.exchanged, adjustment.dropped_magnitude) == (2, 1.0)  # of 0 and 2


def local_training(model: Model, job: Job, samples: int) -> LocalTraining:
    backend = TorchBackend(model.network)
    backend.load(model.state)
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (samples, *model.network.input.shape), dtype=np.uint8)
    labels = random.integers(0, model.network.classes, samples)
    return LocalTraining(0, backend, Samples(images, labels, np.arange(samples)), job)


def test_importance_is_a_mean_over_steps_so_that_samples_count_once() -> None:
    """The same batch twice, of which hardly anything is learnt, is as important as once."""
    model = layer_model([0, 2, 5, 7], [0.5, -0.1, 0.2, -3.0])
    found = []
    for epochs in (1, 2):
        job = Job(
            method="prunefl",
            round=5,
            seed=0,
            learning_rate=1e-12,
            initial_rate=1e-12,
            local_epochs=epochs,
            adjustment_rate=0.4,
        )
        found.append(PruneFL().train(local_training(model, job, 3), job).arrays["0.importance"])
    assert found[0].shape == (8,)
    assert (found[0] > 0).all()
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


def test_between_adjustments_it_trains_and_sends_nothing_else() -> None:
    local = local_training(layer_model([0, 2, 5, 7], [0.5, -0.1, 0.2, -3.0]), ORDINARY, 3)
    assert PruneFL().train(local, ORDINARY) == Extras()
    assert len(local.losses) == 1


def test_a_frozen_layer_is_not_looked_at() -> None:
    model = two_layers(FIRST, SECOND, frozen=("0.values",))
    sent = PruneFL().train(local_training(model, ADJUSTING, 3), ADJUSTING)
    assert sent.arrays.keys() == {"1.importance"}


def test_squared_gradients_are_those_of_the_dense_layer() -> None:
    torch.manual_seed(0)
    layer = SparseConv2d(2, 3, 3, bias=False, sparsity=0.6)
    batches = [torch.randn(2, 2, 5, 5) for _ in range(2)]
    with squared_gradients({"0": layer}) as sums:
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
    assert layer.observe_growth is None


def test_nobody_looks_at_gradients_after_the_block() -> None:
    layer = SparseConv2d(2, 3, 3, bias=False, sparsity=0.6)
    with pytest.raises(RuntimeError, match="in the block"), squared_gradients({"0": layer}) as sums:
        raise RuntimeError("in the block")
    layer(torch.randn(2, 2, 5, 5)).sum().backward()
    assert not sums["0"].any()


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        np.full(4, np.nan, np.float32),
        np.full(4, -1.0, np.float32),
        np.ones(5, np.float32),
        np.ones(4),
    ],
)
def test_a_wrong_importance_is_refused(wrong: Array | None) -> None:
    good = update(1, [1.0] * 4, [1.0] * 4).extras.arrays
    arrays = {} if wrong is None else {**good, "0.importance": wrong}
    bad = Update(7, 1, 0.0, {}, Extras(arrays=arrays))
    with pytest.raises(RejectedError, match="device 7 sent"):
        PruneFL().adjust(two_layers(FIRST, SECOND), [bad], ADJUSTING, MEAN)
    with pytest.raises(RejectedError, match="device 7 sent"):
        PruneFL().check(two_layers(FIRST, SECOND), bad, ADJUSTING)


def test_importances_that_nobody_asked_for_are_refused() -> None:
    sent = update(1, [1.0] * 4, [1.0] * 4)
    PruneFL().check(two_layers(FIRST, SECOND), sent, ADJUSTING)
    with pytest.raises(RejectedError, match=r"device 1 sent an unexpected '0\.importance'"):
        PruneFL().check(two_layers(FIRST, SECOND), sent, ORDINARY)


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
    counts = [layer.active for layer in run.summary.layers.values()]
    assert counts == [layer.active_count for layer in sparse_layers(fedmef.load(run.path)).values()]
    first = active(initial_model(experiment, (1, 8, 8), 10, ((0.5,), (0.5,))))
    assert counts != first
    assert sum(counts) == sum(first)
