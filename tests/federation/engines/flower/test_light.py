"""SuperNodes whose environment has no PyTorch, as real processes with TLS and node authentication."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import fedmef
from fedmef.experiment.settings import Experiment
from fedmef.federation.engines.flower.template.app.data import load_data
from fedmef.federation.engines.flower.template.app.model import load_model
from fedmef.federation.simulated.fleet import partition
from fedmef.runs.directory import Run
from scripts.deploy_demo import Deployment
from scripts.light_environment import make_light_environment
from tests.federation.small import digest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("openssl") and shutil.which("ssh-keygen")), reason="needs openssl and ssh-keygen"
    ),
]

# At the end of the app's client_app.py: each ClientApp says what its own process cannot import.
SAY = """
from importlib.util import find_spec

print("missing:", *(name for name in ("torch", "ray", "matplotlib") if find_spec(name) is None), flush=True)
"""


def write_shares(folder: Path, experiment: Experiment) -> list[Path]:
    """The data of each device as a simulation would divide them, on its own disk."""
    train = load_data().train
    shares = []
    for device, share in enumerate(partition(experiment, load_data())):
        shares.append(folder / f"data-{device}")
        shares[-1].mkdir()
        np.save(shares[-1] / "images.npy", train.images[share])
        np.save(shares[-1] / "labels.npy", train.labels[share])
    return shares


def test_devices_without_pytorch_end_in_the_bits_of_a_native_simulation(tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    folder.mkdir()
    settings = {"devices": 2, "devices-per-round": 2, "rounds": 3, "adjust-every": 1, "local-epochs": 1}
    with Deployment(folder, make_light_environment(tmp_path / "light")) as fleet:
        fleet.write_app()
        with (folder / "fleet" / "client_app.py").open("a") as app:
            app.write(SAY)
        fleet.write_certificates()
        fleet.start_superlink()
        for device, data in enumerate(write_shares(tmp_path, Experiment(devices=2, devices_per_round=2))):
            fleet.write_key(f"device-{device}")
            fleet.register(f"device-{device}")
            fleet.start_supernode(f"device-{device}", device, data=data)
        assert fleet.start_run(settings).wait(400) == 0, fleet.log("run")
        for device in (0, 1):
            said = re.findall("missing: (.*)", fleet.log(f"device-{device}"))
            assert said == ["torch ray matplotlib"] * 4  # which device it is, and three rounds
    trained = Run.open(folder / "runs" / "flower")
    assert trained.summary.lost_updates == 0
    assert [record.adjusted for record in trained.rounds] == [False, True, False]
    changes = {"engine": "inline", "backend": "native", "model": f"{load_model.__module__}:load_model"}
    simulated = trained.experiment.model_copy(update=changes)
    inline = fedmef.run(simulated, tmp_path / "inline", dataset=load_data())
    assert digest(inline.path) == digest(trained.path)
