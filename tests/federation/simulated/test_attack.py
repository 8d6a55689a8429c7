from pathlib import Path

import numpy as np
import pytest

import fedmef
from fedmef.experiment.settings import Experiment
from fedmef.federation.preparation import prepare
from fedmef.federation.server import Server
from fedmef.federation.simulated.attack import attackers, scale_update
from fedmef.federation.simulated.fleet import Fleet
from fedmef.methods import Extras, Job, Update
from fedmef.sparsity.arrays import Array
from fedmef.sparsity.masks import mask_from_positions
from fedmef.sparsity.model import Model
from fedmef.sparsity.network import Input, Network
from fedmef.sparsity.operations import BatchNorm, Flatten
from fedmef.wire.broadcast import encode_broadcast
from fedmef.wire.store import Store
from fedmef.wire.update import decode_update, encode_update
from tests.federation.small import SMALL, TINY
from tests.runs.written import NETWORK, a_model

JOB = Job(method="fedavg", round=0, seed=0, learning_rate=0.25, initial_rate=0.5)


def single(*values: float) -> Array:
    return np.array(values, dtype=np.float32)


def test_attackers_are_as_many_as_asked_and_always_the_same() -> None:
    assert len(attackers(0.1, 100, seed=3)) == 10
    assert len(attackers(0.19, 10, seed=3)) == 1
    assert len(attackers(0.3, 10, seed=3)) == 3  # 0.3 · 10 is 2.9999999999999996
    assert attackers(0.0, 10, seed=3) == frozenset()
    assert attackers(0.5, 20, seed=3) == attackers(0.5, 20, seed=3)
    assert attackers(0.5, 20, seed=3) != attackers(0.5, 20, seed=4)
    assert all(0 <= device < 20 for device in attackers(0.5, 20, seed=3))


def test_what_training_changed_is_scaled_by_hand(tmp_path: Path) -> None:
    """The model was (1, 2) and (0, 0); the device trained it to (2, 2) and (0, -1)."""
    message = encode_broadcast(a_model(1.0), JOB)
    weights = {"out.values": single(2.0, 2.0), "out.bias": single(0.0, -1.0)}
    answer = encode_update(Update(3, 10, 0.5, weights, Extras()), NETWORK)
    scaled = decode_update(scale_update(message, answer, -10.0, Store(tmp_path)), NETWORK)
    assert scaled.weights["out.values"].tolist() == [-9.0, 2.0]
    assert scaled.weights["out.bias"].tolist() == [0.0, 10.0]
    assert (scaled.device, scaled.samples, scaled.loss) == (3, 10, 0.5)


def test_weights_that_a_device_has_grown_were_zero_before(tmp_path: Path) -> None:
    """The mask was {0, 5} with (1, 2); the device has moved its second weight to position 6."""
    message = encode_broadcast(a_model(1.0), JOB)
    mask = mask_from_positions(np.array([0, 6]), 8)
    weights = {"out.values": single(2.0, 4.0), "out.bias": single(0.0, 0.0)}
    answer = encode_update(Update(3, 10, 0.5, weights, Extras(masks={"out": mask})), NETWORK)
    scaled = decode_update(scale_update(message, answer, -10.0, Store(tmp_path)), NETWORK)
    assert scaled.weights["out.values"].tolist() == [-9.0, -40.0]
    assert np.array_equal(scaled.extras.masks["out"], mask)


def test_running_statistics_are_left_as_they_are(tmp_path: Path) -> None:
    """A variance of 1 that training made 3 would become 1 − 10 · 2, and give the attacker away."""
    layer = BatchNorm(name="bn", inputs=("input",), module="bn", channels=1)
    network = Network(Input((1, 1, 1), (0.5,), (0.25,)), (layer, Flatten(name="flat", inputs=("bn",))))
    before = {name: single(1.0) for name in network.floats} | {"bn.num_batches_tracked": np.array(0)}
    answer = encode_update(
        Update(3, 10, 0.5, {name: single(3.0) for name in network.floats}, Extras()), network
    )
    message = encode_broadcast(Model(network, before), JOB)
    scaled = decode_update(scale_update(message, answer, -10.0, Store(tmp_path)), network)
    assert {name: array.tolist() for name, array in scaled.weights.items()} == {
        "bn.weight": [-19.0],
        "bn.bias": [-19.0],
        "bn.running_mean": [3.0],
        "bn.running_var": [3.0],
    }


@pytest.mark.parametrize("method", ["fedavg", "fedtiny", "feddst", "prunefl", "zerofl", "fedmef"])
def test_an_attackers_update_passes_the_checks(tmp_path: Path, method: str) -> None:
    experiment = Experiment(**{**TINY, "method": method, "attackers": 0.2, "rounds": 4})
    prepared = prepare(experiment)
    server = Server(experiment, prepared.model)
    fleet = Fleet.build(experiment, prepared.dataset, Store(tmp_path))
    (attacker,) = attackers(0.2, 6, 0)
    for number in (0, 1):  # 1 adjusts
        job = server.job(number)
        answer = fleet.train(attacker, server.broadcast(job, [attacker])[attacker])
        updates, rejections = server.check({attacker: answer}, job)
        assert rejections == []
        assert [update.device for update in updates] == [attacker]


def test_an_attack_changes_the_model_and_costs_no_update(tmp_path: Path) -> None:
    settings = {**SMALL, "rounds": 2, "method": "fedtiny", "learning_rate": 0.1}
    honest = fedmef.run(Experiment(**settings), tmp_path / "honest")
    attacked = fedmef.run(Experiment(**settings, attackers=0.5), tmp_path / "attacked")
    assert attacked.summary.rejected_updates == attacked.summary.lost_updates == 0
    assert attacked.summary.bytes_up == honest.summary.bytes_up
    assert (attacked.path / "model.safetensors").read_bytes() != (
        honest.path / "model.safetensors"
    ).read_bytes()
