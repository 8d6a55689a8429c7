"""The devices that one process stands for; faults and attackers are around a device, never in it."""

import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedmef.device
from fedmef.data import load_dataset
from fedmef.device.backend import open_backend
from fedmef.device.device import Device
from fedmef.device.training import Samples
from fedmef.errors import MessageError, NotHeldError
from fedmef.experiment.settings import Experiment
from fedmef.federation.preparation import prepare
from fedmef.federation.server import Server
from fedmef.federation.simulated.attack import attackers, scale_update
from fedmef.federation.simulated.faults import InjectedFault, Killed, TooLate
from fedmef.federation.simulated.fleet import Fleet, partition
from fedmef.wire.store import Store
from fedmef.wire.update import decode_update
from tests.federation.small import TINY


class Simulation:
    """A fleet, and the message of a round for it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.experiment = Experiment(**{**TINY, **settings})
        prepared = prepare(self.experiment)
        self.server = Server(self.experiment, prepared.model)
        self.fleet = Fleet.build(self.experiment, prepared.dataset, Store(folder))
        self.message = self.server.broadcast(self.server.job(0), [0])[0]


def test_every_sample_belongs_to_one_device() -> None:
    data = load_dataset("digits")
    for how in ("iid", "dirichlet"):
        shares = partition(Experiment(**{**TINY, "partition": how}), data)
        assert len(shares) == 6
        assert sorted(np.concatenate(shares).tolist()) == list(range(len(data.train)))
        assert all(len(share) for share in shares)


def test_the_same_fleet_stands_in_every_process(tmp_path: Path) -> None:
    one, other = Simulation(tmp_path / "one"), Simulation(tmp_path / "other")
    assert all(np.array_equal(a, b) for a, b in zip(one.fleet.shares, other.fleet.shares, strict=True))
    assert one.message == other.message
    for device in range(6):
        assert one.fleet.train(device, one.message) == other.fleet.train(device, one.message)


def test_the_order_in_which_devices_train_changes_nothing(tmp_path: Path) -> None:
    """They share a backend as scratch space."""
    one, other = Simulation(tmp_path / "one"), Simulation(tmp_path / "other")
    forwards = {device: one.fleet.train(device, one.message) for device in range(6)}
    backwards = {device: other.fleet.train(device, one.message) for device in reversed(range(6))}
    assert forwards == backwards
    assert len(set(forwards.values())) == 6


def test_a_device_answers_with_its_own_number_and_samples(tmp_path: Path) -> None:
    simulation = Simulation(tmp_path)
    network = simulation.server.model.network
    for device in (0, 4):
        update = decode_update(simulation.fleet.train(device, simulation.message), network)
        assert (update.device, update.samples) == (device, len(simulation.fleet.shares[device]))


def test_a_device_that_has_nothing_cannot_use_a_message_that_builds_on_something(tmp_path: Path) -> None:
    simulation = Simulation(tmp_path / "one")
    simulation.fleet.train(0, simulation.message)
    simulation.server.ledger.note(0)
    short = simulation.server.broadcast(simulation.server.job(1), [0])[0]
    assert simulation.fleet.train(0, short)
    with pytest.raises(NotHeldError):
        Simulation(tmp_path / "other").fleet.train(0, short)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("drop", InjectedFault), ("slow", TooLate), ("kill", Killed)],
)
def test_a_faulty_device_does_not_train(tmp_path: Path, kind: str, expected: type[InjectedFault]) -> None:
    simulation = Simulation(tmp_path / "held", faults=f"{kind}@0:3")
    with pytest.raises(expected, match="injected"):
        simulation.fleet.train(3, simulation.message)
    assert not (tmp_path / "held").exists()  # it has not even read its message
    assert simulation.fleet.train(2, simulation.message)


def test_a_corrupting_device_answers_something_that_is_no_update(tmp_path: Path) -> None:
    simulation = Simulation(tmp_path, faults="corrupt@0:3")
    with pytest.raises(MessageError):
        decode_update(simulation.fleet.train(3, simulation.message), simulation.server.model.network)


def test_a_fault_is_that_of_the_round_and_the_attempt_in_the_message(tmp_path: Path) -> None:
    simulation = Simulation(tmp_path, faults="drop@1:3")
    assert simulation.fleet.train(3, simulation.message)
    later = simulation.server.broadcast(simulation.server.job(1), [3])[3]
    with pytest.raises(InjectedFault):
        simulation.fleet.train(3, later)


def test_an_attacker_sends_its_scaled_update_and_others_their_own(tmp_path: Path) -> None:
    honest = Simulation(tmp_path / "honest")
    hostile = Simulation(tmp_path / "hostile", attackers=0.5, attack_scale=-3.0)
    (attacking, *_), store = sorted(attackers(0.5, 6, 0)), honest.fleet.store
    harmless = min(set(range(6)) - attackers(0.5, 6, 0))
    assert hostile.fleet.train(harmless, hostile.message) == honest.fleet.train(harmless, honest.message)
    expected = scale_update(honest.message, honest.fleet.train(attacking, honest.message), -3.0, store)
    assert hostile.fleet.train(attacking, hostile.message) == expected


def test_warming_up_loads_the_backend_before_a_device_is_asked() -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from fedmef.data import load_dataset\n"
        "from fedmef.experiment.settings import Experiment\n"
        "from fedmef.federation.simulated.fleet import Fleet\n"
        "from fedmef.wire.store import Store\n"
        "fleet = Fleet.build(Experiment(), load_dataset('digits'), Store(Path('held')))\n"
        "assert 'torch' not in sys.modules\n"
        "fleet.warm_up()\n"
        "assert 'torch' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_shipped_device_knows_nothing_of_faults_and_attackers() -> None:
    modules = [module.name for module in pkgutil.iter_modules(fedmef.device.__path__, "fedmef.device.")]
    assert "fedmef.device.device" in modules
    code = (
        f"import sys, {', '.join(modules)}\n"
        "wrong = ('fedmef.federation', 'fedmef.runs', 'torch', 'flwr')\n"
        "sys.exit(str([name for name in sys.modules if name.startswith(wrong)] or ''))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.stderr.strip() == ""


def test_a_shipped_device_answers_with_the_bytes_of_a_simulated_one(tmp_path: Path) -> None:
    """With nothing of a simulation around it, and nothing but its own data."""
    simulation = Simulation(tmp_path / "fleet")
    fleet, train = simulation.fleet, simulation.fleet.dataset.train
    share = fleet.shares[2]
    own = Samples(train.images[share], train.labels[share], np.arange(len(share)))
    device = Device(2, own, open_backend, Store(tmp_path / "own"))
    assert device.train(simulation.message) == fleet.train(2, simulation.message)


def test_a_fleet_remembers_no_more_than_the_backend_in_use(tmp_path: Path) -> None:
    simulation = Simulation(tmp_path, dataset="digits")
    simulation.fleet.train(0, simulation.message)
    first = list(simulation.fleet._backends)
    wider = Simulation(tmp_path, dataset="digits", width=8)
    simulation.fleet.train(0, wider.message)
    assert len(simulation.fleet._backends) == 1
    assert list(simulation.fleet._backends) != first
