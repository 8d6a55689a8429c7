import math

import pytest
import torch
from torch import nn

from fedmef.exchange import decode_broadcast, decode_update, encode_broadcast, encode_update
from fedmef.methods.base import Extras, Plan
from fedmef.nn import GrowthScores, SparseConv2d
from fedmef.wire import MessageError, encode


def model() -> nn.Module:
    return nn.Sequential(SparseConv2d(2, 4, 3, sparsity=0.5), nn.BatchNorm2d(4))


def test_a_broadcast_carries_the_model_with_its_masks_and_the_plan() -> None:
    plan = Plan(round=3, learning_rate=0.1, adjustment_rate=0.4)
    state, received = decode_broadcast(encode_broadcast(model().state_dict(), plan))
    assert received == plan
    assert "0.mask" in state
    model().load_state_dict(state)


def test_an_update_never_repeats_the_mask() -> None:
    update = decode_update(encode_update(7, 100, 0.5, model(), Extras()))
    assert (update.device, update.samples, update.loss) == (7, 100, 0.5)
    assert update.weights.keys() == {
        "0.values",
        "0.bias",
        "1.weight",
        "1.bias",
        "1.running_mean",
        "1.running_var",
    }


def test_growth_scores_travel_with_the_update() -> None:
    growth = {"0": GrowthScores(torch.tensor([1, 70_000]), torch.tensor([0.5, -0.5]))}
    extras = Extras(growth, {"0.mask": torch.tensor([3], dtype=torch.uint8)})
    received = decode_update(encode_update(0, 1, 0.0, model(), extras)).extras
    assert received.growth["0"].positions.tolist() == [1, 70_000]
    assert received.growth["0"].gradients.tolist() == [0.5, -0.5]
    assert received.tensors["0.mask"].tolist() == [3]


def test_a_diverged_loss_can_be_sent() -> None:
    assert math.isnan(decode_update(encode_update(0, 1, math.nan, model(), Extras())).loss)


@pytest.mark.parametrize("name", ["values", "other/values", "growth/values", "growth/0/positions"])
def test_an_update_of_another_form_is_refused(name: str) -> None:
    header = {"device": 0, "samples": 1, "loss": "0"}
    with pytest.raises(MessageError):
        decode_update(encode({name: torch.zeros(1)}, header))


def test_a_broadcast_is_no_update_and_the_other_way_round() -> None:
    with pytest.raises(MessageError):
        decode_update(encode_broadcast({}, Plan(0, 0.1)))
    with pytest.raises(MessageError):
        decode_broadcast(encode_update(0, 1, 0.0, model(), Extras()))
