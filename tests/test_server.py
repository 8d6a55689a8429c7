import math

import pytest
import torch
from torch import nn

from fedmef.errors import FedmefError
from fedmef.exchange import decode_broadcast, encode_update
from fedmef.experiment import Experiment
from fedmef.methods import Method, Plan
from fedmef.methods.base import Extras
from fedmef.nn import SparseConv2d
from fedmef.server import Server
from fedmef.wire import MaskMissingError

PLAN = Plan(round=4, learning_rate=0.25)


def two_weights(first: float, second: float) -> nn.Module:
    layer = SparseConv2d(1, 1, (1, 4), bias=False, sparsity=0.5)
    layer.assign(torch.tensor([0, 2]), torch.tensor([first, second]))
    return nn.Sequential(layer)


def answer(device: int, samples: int, first: float, second: float, loss: float = 1.0) -> bytes:
    return encode_update(device, samples, loss, two_weights(first, second), Extras())


def server() -> Server:
    return Server(Method(Experiment()), two_weights(0.0, 0.0))


def values(of: Server) -> list[float]:
    state, _ = decode_broadcast(of.broadcast(PLAN, [99])[99], two_weights(0.0, 0.0))
    return state["0.values"].tolist()


def test_devices_count_by_their_samples() -> None:
    one = server()
    loss = one.absorb([answer(0, 1, 4.0, 0.0, loss=1.0), answer(1, 3, 0.0, 8.0, loss=2.0)], PLAN)
    assert values(one) == [1.0, 6.0]
    assert loss == 1.75


def test_the_order_of_answers_changes_nothing() -> None:
    answers = [answer(device, device + 1, 0.1 * device, 1 / (device + 3)) for device in range(9)]
    one, other = server(), server()
    one.absorb(answers, PLAN)
    other.absorb(answers[::-1], PLAN)
    assert values(one) == values(other)


def test_weights_that_are_not_finite_stop_the_run_and_name_the_device() -> None:
    with pytest.raises(
        FedmefError, match=r"round 4: device 7 .*not finite.*lower learning_rate \(now 0.25\)"
    ):
        server().absorb([answer(7, 1, math.nan, 0.0)], PLAN)


def test_an_update_of_another_shape_is_refused() -> None:
    other = encode_update(1, 1, 0.0, nn.Sequential(SparseConv2d(1, 1, 3, bias=False, sparsity=0.5)), Extras())
    with pytest.raises(FedmefError, match=r"device 1 sent no 0\.values of shape \[2\]"):
        server().absorb([other], PLAN)


def test_devices_are_sent_the_masks_that_they_do_not_hold() -> None:
    one = server()
    first = one.broadcast(PLAN, [0, 1])
    assert first[0] == first[1]
    one.absorb([answer(1, 1, 0.0, 0.0)], PLAN)  # device 0 got lost
    second = one.broadcast(PLAN, [0, 1])
    assert second[0] == first[0]
    assert len(second[1]) < len(second[0])
    with pytest.raises(MaskMissingError):
        decode_broadcast(second[1], two_weights(0.0, 0.0))


def test_masks_are_always_sent_to_devices_that_remember_none() -> None:
    one = Server(Method(Experiment(remember_masks=False)), two_weights(0.0, 0.0))
    first = one.broadcast(PLAN, [0])
    one.absorb([answer(0, 1, 0.0, 0.0)], PLAN)
    assert one.broadcast(PLAN, [0]) == first


class Densifying(Method):
    def adjust(self, model: nn.Module, updates: object, plan: Plan) -> None:
        layer = model.get_submodule("0")
        assert isinstance(layer, SparseConv2d)
        layer.assign(torch.tensor([0, 1, 2]), torch.ones(3))


def test_a_method_that_densifies_by_accident_is_stopped() -> None:
    careless = Server(Densifying(Experiment()), two_weights(0.0, 0.0))
    plan = Plan(round=4, learning_rate=0.25, adjustment_rate=0.4)
    careless.absorb([answer(0, 1, 1.0, 1.0)], plan)
    with pytest.raises(FedmefError, match="0 has 3 active weights instead of 2"):
        careless.adjust(plan)
