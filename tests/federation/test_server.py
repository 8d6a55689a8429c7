import pytest
import torch
from torch import nn

from fedmef.errors import FedmefError
from fedmef.experiment.settings import Experiment
from fedmef.federation.server import Server
from fedmef.methods import Method, Plan
from fedmef.methods.base import Extras
from fedmef.nn import SparseConv2d
from fedmef.wire import MaskMissingError
from fedmef.wire.exchange import decode_broadcast, decode_update, encode_update

PLAN = Plan(round=4, learning_rate=0.25)


def two_weights(first: float, second: float) -> nn.Module:
    layer = SparseConv2d(1, 1, (1, 4), bias=False, sparsity=0.5)
    layer.assign(torch.tensor([0, 2]), torch.tensor([first, second]))
    return nn.Sequential(layer)


def answer(device: int, samples: int, first: float, second: float, loss: float = 1.0) -> bytes:
    return encode_update(device, samples, loss, two_weights(first, second), Extras())


def server() -> Server:
    return Server(Method(Experiment()), two_weights(0.0, 0.0))


def absorb(into: Server, answers: list[bytes], plan: Plan = PLAN) -> float:
    numbered = {decode_update(one, into.model).device: one for one in answers}
    updates, rejections = into.check(numbered, plan)
    assert not rejections
    return into.absorb(updates, plan)


def values(of: Server) -> list[float]:
    state, _ = decode_broadcast(of.broadcast(PLAN, [99])[99], two_weights(0.0, 0.0))
    return state["0.values"].tolist()


def test_devices_count_by_their_samples() -> None:
    one = server()
    loss = absorb(one, [answer(0, 1, 4.0, 0.0, loss=1.0), answer(1, 3, 0.0, 8.0, loss=2.0)])
    assert values(one) == [1.0, 6.0]
    assert loss == 1.75


def test_the_order_of_answers_changes_nothing() -> None:
    answers = [answer(device, device + 1, 0.1 * device, 1 / (device + 3)) for device in range(9)]
    one, other = server(), server()
    absorb(one, answers)
    absorb(other, answers[::-1])
    assert values(one) == values(other)


def test_devices_are_sent_the_masks_that_they_do_not_hold() -> None:
    one = server()
    first = one.broadcast(PLAN, [0, 1])
    assert first[0] == first[1]
    absorb(one, [answer(1, 1, 0.0, 0.0)])  # device 0 got lost
    second = one.broadcast(PLAN, [0, 1])
    assert second[0] == first[0]
    assert len(second[1]) < len(second[0])
    with pytest.raises(MaskMissingError):
        decode_broadcast(second[1], two_weights(0.0, 0.0))


def test_a_device_that_was_lost_is_sent_all_masks_again() -> None:
    one = server()
    first = one.broadcast(PLAN, [0])
    absorb(one, [answer(0, 1, 0.0, 0.0)])
    assert len(one.broadcast(PLAN, [0])[0]) < len(first[0])
    one.missed(0)
    assert one.broadcast(PLAN, [0]) == first


def test_masks_are_always_sent_to_devices_that_remember_none() -> None:
    one = Server(Method(Experiment(remember_masks=False)), two_weights(0.0, 0.0))
    first = one.broadcast(PLAN, [0])
    absorb(one, [answer(0, 1, 0.0, 0.0)])
    assert one.broadcast(PLAN, [0]) == first


class Densifying(Method):
    def adjust(self, model: nn.Module, updates: object, plan: Plan) -> None:
        layer = model.get_submodule("0")
        assert isinstance(layer, SparseConv2d)
        layer.assign(torch.tensor([0, 1, 2]), torch.ones(3))


def test_a_method_that_densifies_by_accident_is_stopped() -> None:
    careless = Server(Densifying(Experiment()), two_weights(0.0, 0.0))
    plan = Plan(round=4, learning_rate=0.25, adjustment_rate=0.4)
    absorb(careless, [answer(0, 1, 1.0, 1.0)], plan)
    with pytest.raises(FedmefError, match="0 has 3 active weights instead of 2"):
        careless.adjust(plan)
