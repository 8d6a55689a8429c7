import pytest
import torch
from torch import nn

from fedmef.errors import FedmefError
from fedmef.exchange import decode_broadcast, decode_update, encode_update
from fedmef.experiment import Experiment
from fedmef.methods import Method, Plan
from fedmef.methods.base import Extras
from fedmef.nn import SparseConv2d
from fedmef.server import Server

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
    updates, rejections = into.check({decode_update(one).device: one for one in answers}, plan)
    assert not rejections
    return into.absorb(updates, plan)


def values(of: Server) -> list[float]:
    state, _ = decode_broadcast(of.broadcast(PLAN, [3])[3])
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
