from pathlib import Path

import pytest
import torch
from torch import nn

import fedmef
from fedmef.errors import FedmefError
from fedmef.experiment.settings import Experiment
from fedmef.methods.base import Adjustment, Extras, Plan, Update
from fedmef.methods.feddst import FedDST, average_over_holders
from fedmef.nn import SparseConv2d
from fedmef.sparsity import mask_from_positions

PLAN = Plan(round=5, learning_rate=0.1, adjustment_rate=0.4)


def model() -> nn.Sequential:
    layer = SparseConv2d(1, 2, (1, 4), bias=False, sparsity=0.5)
    layer.assign(torch.tensor([0, 2, 5, 7]), torch.ones(4))
    return nn.Sequential(layer, nn.BatchNorm2d(2))


def update(device: int, samples: int, positions: list[int], values: list[float]) -> Update:
    weights = {name: tensor for name, tensor in model().state_dict().items() if tensor.is_floating_point()}
    weights |= {"0.values": torch.tensor(values), "1.weight": torch.full((2,), float(device))}
    masks = {"0": mask_from_positions(torch.tensor(positions), 8)}
    return Update(device, samples, 0.0, weights, Extras(masks=masks))


def test_a_position_is_averaged_over_the_devices_that_hold_it() -> None:
    held = [
        (torch.tensor([0, 2]), torch.tensor([1.0, 4.0])),
        (torch.tensor([2, 3]), torch.tensor([8.0, -6.0])),
    ]
    positions, values = average_over_holders(held, [0.25, 0.75], size=5)
    assert positions.tolist() == [0, 2, 3]
    assert values.tolist() == [1.0, 0.25 * 4 + 0.75 * 8, -6.0]


def test_devices_with_different_masks_are_merged_and_the_largest_stay() -> None:
    merged, method = model(), FedDST(Experiment(method="feddst"))
    updates = [
        update(1, 1, [0, 1, 5, 7], [1.0, 4.0, 0.1, 2.0]),
        update(3, 3, [0, 2, 5, 6], [5.0, -3.0, 0.5, 0.2]),
    ]

    method.aggregate(merged, updates)
    layer = merged[0]
    assert isinstance(layer, SparseConv2d)
    assert merged.get_parameter("1.weight").tolist() == [2.5, 2.5]  # what is dense is averaged over all

    # Of what any device holds, [0, 1, 2, 5, 6, 7] with averages [4, 4, -3, 0.4, 0.2, 2], four stay.
    adjustment = method.adjust(merged, updates, PLAN)
    assert layer.active_positions().tolist() == [0, 1, 2, 7]
    torch.testing.assert_close(layer.values.detach(), torch.tensor([4.0, 4.0, -3.0, 2.0]))
    assert adjustment == Adjustment(exchanged=1, dropped_magnitude=None)  # 1 came where 5 was


def test_the_change_of_a_single_device_counts_as_an_adjustment() -> None:
    alone, updates = model(), [update(1, 1, [0, 1, 3, 7], [1.0, 4.0, 0.1, 2.0])]
    FedDST(Experiment()).aggregate(alone, updates)
    assert FedDST(Experiment()).adjust(alone, updates, PLAN).exchanged == 2


def test_no_accuracy_is_told_of_a_model_that_no_device_has(tmp_path: Path) -> None:
    experiment = Experiment(
        method="feddst", width=4, devices=4, devices_per_round=1, local_epochs=1, rounds=2, adjust_every=1
    )
    run = fedmef.run(experiment.model_copy(update={"adjust_until": 9, "engine": "inline"}), tmp_path / "run")
    record = run.metrics[1]
    assert record["adjusted"] is True
    assert record["exchanged_weights"] > 0
    assert record["accuracy_before_adjustment"] is None
    assert record["accuracy_after_adjustment"] is None


def test_a_mask_that_does_not_fit_its_values_is_refused() -> None:
    wrong = update(1, 1, [0, 1, 5], [1.0, 4.0, 0.1, 2.0])
    with pytest.raises(FedmefError, match="device 1 sent a mask of 0 that does not fit"):
        FedDST(Experiment()).adjust(model(), [wrong], PLAN)


def test_without_an_adjustment_it_averages_like_fedavg() -> None:
    plain = [Update(1, 1, 0.0, update(1, 1, [0, 1, 2, 3], [1.0, 2.0, 3.0, 4.0]).weights, Extras())]
    averaged = model()
    FedDST(Experiment()).aggregate(averaged, plain)
    layer = averaged[0]
    assert isinstance(layer, SparseConv2d)
    assert layer.active_positions().tolist() == [0, 2, 5, 7]
    assert layer.values.tolist() == [1.0, 2.0, 3.0, 4.0]
