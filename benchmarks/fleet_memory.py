"""What a device of a Flower fleet takes: the memory of its SuperNode, its SuperExec and its ClientApp.

A deployment on the loopback with TLS and node authentication, of one device, which trains a ResNet18 for
three rounds, one of them with an adjustment. Three times: where PyTorch is not installed, where it is
installed and not needed, and with its backend. In megabytes:

    supernode, superexec, clientapp    the most that each process had resident, by the kernel's own count
    round                              the same of the ClientApp, from the message's arrival to the answer
    device                             the most of all three at one time; what they share counts once (PSS)

    python benchmarks/fleet_memory.py [--stem imagenet] [--width 64] [--batch 64] [--json]
"""

import argparse
import json
import os
import sys
import tempfile
import threading
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from fedmef.data import SyntheticImages
from fedmef.runs.directory import Run
from scripts.deploy_demo import BIN, Deployment
from scripts.light_environment import make_light_environment

PROCESSES = {"flower-supernode": "supernode", "flower-superexec": "superexec", "flwr-clientapp": "clientapp"}
DATA = """
from fedmef.data import Dataset, SyntheticImages

def load_data(partition_id: int | None = None) -> Dataset:
    return SyntheticImages(train=128, test=64).make()
"""
MODEL = """
from torch import nn

from fedmef.models import resnet18

def load_model(classes: int, channels: int) -> nn.Module:
    return resnet18(classes=classes, channels=channels, width={width}, stem="{stem}")
"""


class Watch(threading.Thread):
    """Looks at the processes of a session until told to stop."""

    def __init__(self, session: int) -> None:
        super().__init__(daemon=True)
        self.peaks: dict[str, int] = {}
        self._session = session
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.2):
            together = 0
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    together += self._look(int(process.name))
                except (OSError, ValueError, IndexError):  # it has just ended
                    continue
            self._note("device", together)

    def stop(self) -> dict[str, int]:
        self._over.set()
        self.join()
        return self.peaks

    def _look(self, process: int) -> int:
        """Note its high-water mark; returns its share of memory, 0 for a process of somebody else."""
        if os.getsid(process) != self._session:
            return 0
        folder = Path(f"/proc/{process}")
        words = folder.joinpath("cmdline").read_text().split("\0")
        names = [PROCESSES[Path(word).name] for word in words[:2] if Path(word).name in PROCESSES]
        self._note(names[0], _kilobytes(folder / "status", "VmHWM"))
        return _kilobytes(folder / "smaps_rollup", "Pss")

    def _note(self, name: str, kilobytes: int) -> None:
        self.peaks[name] = max(self.peaks.get(name, 0), kilobytes)


def _kilobytes(file: Path, name: str) -> int:
    return int(file.read_text().split(f"{name}:")[1].split()[0])


def measure(
    folder: Path, commands: Path, backend: str, stem: str, width: int, batch: int
) -> dict[str, float]:
    """Megabytes of each process, over a run."""
    folder.mkdir(parents=True)
    train = SyntheticImages(train=128, test=64).make().train
    data = folder / "images"
    data.mkdir()
    np.save(data / "images.npy", train.images)
    np.save(data / "labels.npy", train.labels)
    app = folder / "app"
    app.mkdir()
    with Deployment(app, commands) as fleet:
        fleet.write_app()
        (app / "app" / "data.py").write_text(DATA)
        (app / "app" / "model.py").write_text(MODEL.format(stem=stem, width=width))
        half = app / "app" / "client_app.py"
        half.write_text(half.read_text().replace("(load_data)", f"(load_data, backend='{backend}')"))
        project = app / "pyproject.toml"
        project.write_text(project.read_text().replace("seed = 0\n", f"seed = 0\nbatch-size = {batch}\n"))
        fleet.write_certificates()
        fleet.start_superlink()
        fleet.write_key("device-0")
        fleet.register("device-0")
        watch = Watch(fleet.start_supernode("device-0", 0, data=data).pid)
        watch.start()
        settings = {"devices": 1, "devices-per-round": 1, "rounds": 3, "adjust-every": 1, "local-epochs": 1}
        run = fleet.start_run({**settings, "learning-rate": 0.1})
        if run.wait(1800):
            raise SystemExit(fleet.log("run") + fleet.log("device-0"))
        peaks = {f"{name}_mb": round(kilobytes * 1024 / 1e6, 1) for name, kilobytes in watch.stop().items()}
    rounds = Run.open(app / "runs" / "flower").rounds
    reports = [report for record in rounds for report in record.device_reports]
    peaks["round_mb"] = round(max(report.peak_memory for report in reports) / 1e6, 1)
    peaks["message_mb"] = round(max(report.bytes_down for report in reports) / 1e6, 1)
    return peaks


def main() -> None:
    parser = argparse.ArgumentParser(description="Memory of a device's processes under Flower.")
    parser.add_argument("--stem", default="imagenet", choices=["imagenet", "cifar"])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    network = (options.stem, options.width, options.batch)
    with tempfile.TemporaryDirectory() as name, redirect_stdout(sys.stderr):
        folder = Path(name)
        light = make_light_environment(folder / "light")
        rows = [
            {"pytorch": words, "backend": backend, **measure(folder / place, commands, backend, *network)}
            for place, words, commands, backend in (
                ("a", "not installed", light, "auto"),
                ("b", "installed", BIN, "auto"),
                ("c", "installed", BIN, "torch"),
            )
        ]
    if options.json:
        print(json.dumps({"stem": network[0], "width": network[1], "batch": network[2], "rows": rows}))
        return
    for row in rows:
        print(*(f"{name} {value}" for name, value in row.items()), sep="   ")


if __name__ == "__main__":
    main()
