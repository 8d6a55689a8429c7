from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmef.errors import FedmefError, NotHeldError
from fedmef.experiment.settings import Experiment
from fedmef.federation.server import Server, share
from fedmef.methods import Adjustment, Extras, Job, Method, Update
from fedmef.methods.base import Rules
from fedmef.sparsity.masks import active_positions
from fedmef.sparsity.model import Model
from fedmef.sparsity.network import Input, Network
from fedmef.sparsity.operations import Flatten, Linear
from fedmef.wire.broadcast import NETWORK as SENT_NETWORK
from fedmef.wire.broadcast import decode_broadcast
from fedmef.wire.container import MESSAGE_VERSION, decode
from fedmef.wire.store import Store
from fedmef.wire.update import decode_update, encode_update
from tests.runs.written import NETWORK, a_model, a_state

JOB = Job(method="fedavg", round=4, seed=0, learning_rate=0.25, initial_rate=0.5)


def answer(device: int, samples: int, first: float, second: float, loss: float = 1.0) -> bytes:
    weights = {"out.values": np.array([first, second], dtype=np.float32), "out.bias": a_state()["out.bias"]}
    return encode_update(Update(device, samples, loss, weights, Extras()), NETWORK)


def server(**settings: Any) -> Server:
    return Server(Experiment(method="fedavg", **settings), a_model())


def absorb(into: Server, answers: list[bytes], job: Job = JOB) -> float:
    decoded = [decode_update(one, NETWORK) for one in answers]
    numbered = {
        one.device: encode_update(replace(one, answers=into.sent.get(one.device, "")), NETWORK)
        for one in decoded
    }
    updates, rejections = into.check(numbered, job)
    assert not rejections
    return into.absorb(updates, job)[1]


def values(of: Server) -> list[float]:
    model, _ = decode_broadcast(of.broadcast(JOB, [99])[99])
    numbers: list[float] = model.values("out").tolist()
    return numbers


def arrays_in(message: bytes) -> set[str]:
    return set(decode(message, MESSAGE_VERSION)[0])


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


def test_the_order_of_updates_changes_nothing() -> None:
    """In floating point, 0.1 + 0.2 + 0.3 is not 0.3 + 0.2 + 0.1."""
    answers = {device: answer(device, 1, value, 1.0) for device, value in enumerate((0.1, 0.2, 0.3, 1e7))}
    one, other = server(max_norm_ratio=0.0), server()
    updates, _ = one.check(answers, JOB)
    absorbed, _ = one.absorb(updates, JOB)
    again, _ = other.absorb(updates[::-1], JOB)
    assert [update.device for update in absorbed] == [update.device for update in again] == [0, 1, 2, 3]
    assert values(one) == values(other)


def test_a_broadcast_brings_the_model_and_the_job() -> None:
    one = server()
    model, job = decode_broadcast(one.broadcast(JOB, [3])[3])
    assert job == JOB
    assert model.network == NETWORK
    assert {name: array.tolist() for name, array in model.state.items()} == {
        name: array.tolist() for name, array in a_state().items()
    }


def test_devices_are_sent_what_they_do_not_hold() -> None:
    one = server()
    first = one.broadcast(JOB, [0, 1])
    assert first[0] == first[1]
    assert arrays_in(first[0]) == {"out.values", "out.mask", "out.bias", SENT_NETWORK}
    absorb(one, [answer(1, 1, 1.0, 2.0)])  # device 0 got lost
    second = one.broadcast(JOB, [0, 1])
    assert second[0] == first[0]
    assert arrays_in(second[1]) == {"out.values", "out.bias"}
    assert len(second[1]) < len(second[0])
    with pytest.raises(NotHeldError):
        decode_broadcast(second[1])


def test_the_network_travels_once_though_the_masks_change(tmp_path: Path) -> None:
    one, store = server(), Store(tmp_path / "device")
    decode_broadcast(one.broadcast(JOB, [0])[0], store)
    absorb(one, [answer(0, 1, 1.0, 2.0)])
    for positions in ([1, 5], [1, 6], [2, 6], [2, 7], [3, 7], [3, 4]):
        one.model.assign("out", np.array(positions), np.ones(2))
        one.adjust([], JOB)
        message = one.broadcast(JOB, [0])[0]
        assert SENT_NETWORK not in arrays_in(message)
        assert "out.mask" in arrays_in(message)
        model, _ = decode_broadcast(message, store)
        assert model.network == NETWORK
        assert model.positions("out").tolist() == positions
        absorb(one, [answer(0, 1, 1.0, 1.0)])


def test_a_device_that_was_lost_is_sent_everything_again() -> None:
    one = server()
    first = one.broadcast(JOB, [0])
    absorb(one, [answer(0, 1, 1.0, 2.0)])
    assert len(one.broadcast(JOB, [0])[0]) < len(first[0])
    one.missed(0)
    assert one.broadcast(JOB, [0]) == first


def test_masks_are_always_sent_to_devices_that_remember_none() -> None:
    one = server(remember_masks=False)
    job = one.job(0)
    first = one.broadcast(job, [0])
    absorb(one, [answer(0, 1, 1.0, 2.0)], job)
    second = one.broadcast(job, [0])
    assert arrays_in(second[0]) == arrays_in(first[0]) - {SENT_NETWORK}
    assert "out.mask" in arrays_in(second[0])


def test_the_arrays_of_a_model_are_replaced_and_never_changed() -> None:
    """A message that is still on its way may hold them."""
    one = server()
    before = dict(one.model.state)
    copies = {name: array.copy() for name, array in before.items()}
    absorb(one, [answer(0, 1, 7.0, 8.0)])
    assert all(np.array_equal(before[name], copies[name]) for name in before)
    assert values(one) == [7.0, 8.0]


class Densifying(Method):
    def adjust(self, model: Model, updates: Sequence[Update], job: Job, rules: Rules) -> Adjustment | None:
        model.assign("out", np.array([0, 1, 2]), np.ones(3))
        return None


class Exchanging(Method):
    def adjust(self, model: Model, updates: Sequence[Update], job: Job, rules: Rules) -> Adjustment | None:
        return Adjustment(exchanged=2, dropped_magnitude=0.5)


ADJUSTS = Job(method="fedavg", round=4, seed=0, learning_rate=0.25, initial_rate=0.5, adjustment_rate=0.4)


def test_a_method_that_densifies_by_accident_is_stopped() -> None:
    careless = Server(Experiment(method=f"{__name__}:Densifying"), a_model())
    absorb(careless, [answer(0, 1, 1.0, 1.0)], ADJUSTS)
    with pytest.raises(FedmefError, match="round 5: out has 3 active weights instead of 2"):
        careless.adjust([], ADJUSTS)


def test_a_method_adjusts_in_adjustment_rounds_only() -> None:
    one = Server(Experiment(method=f"{__name__}:Exchanging"), a_model())
    assert one.adjust([], JOB) is None
    assert one.adjust([], ADJUSTS) == Adjustment(exchanged=2, dropped_magnitude=0.5)


class Sliding(Method):
    """Each time the first weight goes, and one comes after the last."""

    def adjust(self, model: Model, updates: Sequence[Update], job: Job, rules: Rules) -> Adjustment | None:
        kept = model.positions("out")[1:]
        model.assign("out", np.append(kept, kept[-1] + 1), np.ones(2))
        return Adjustment(exchanged=1, dropped_magnitude=1.0)


def test_the_share_of_newcomers_among_the_dropped_by_hand() -> None:
    """Of positions 0 and 5, 0 goes and 6 comes; then 5 goes, which was there before, and 7 comes."""
    one = Server(Experiment(method=f"{__name__}:Sliding"), a_model())
    first, second = one.adjust([], ADJUSTS), one.adjust([], ADJUSTS)
    assert first is not None
    assert second is not None
    assert (first.newcomers, second.newcomers) == (None, 0.0)
    assert active_positions(one.ledger.newcomers()["out"], 8).tolist() == [7]
    assert share(one.ledger.newcomers(), one.model.masks()) == 0.5  # of 6 and 7


def two_layers() -> Model:
    """Each has one of two weights."""
    layers = [
        Linear(name=name, inputs=(before,), module=name, shape=(1, size), sparse=True)
        for name, before, size in (("one", "flat", 2), ("two", "one", 1))
    ]
    network = Network(Input((1, 1, 2), (0.5,), (0.25,)), (Flatten(name="flat", inputs=("input",)), *layers))
    value, mask = np.ones(1, dtype=np.float32), np.ones(1, dtype=np.uint8)
    return Model(network, {"one.values": value, "one.mask": mask, "two.values": value, "two.mask": mask})


class Moving(Method):
    """Moves a weight from the second layer to the first."""

    def adjust(self, model: Model, updates: Sequence[Update], job: Job, rules: Rules) -> Adjustment | None:
        model.assign("one", np.array([0, 1]), np.ones(2))
        model.assign("two", np.array([], dtype=np.int64), np.ones(0))
        return Adjustment(exchanged=1, dropped_magnitude=1.0)


class FreelyMoving(Moving):
    fixed_layer_counts = False


def test_only_a_method_that_says_so_may_move_weights_between_layers() -> None:
    with pytest.raises(FedmefError, match="one has 2 active weights instead of 1"):
        Server(Experiment(method=f"{__name__}:Moving"), two_layers()).adjust([], ADJUSTS)
    free = Server(Experiment(method=f"{__name__}:FreelyMoving"), two_layers())
    free.adjust([], ADJUSTS)
    assert free.active == {"one": 2, "two": 0}
