"""`--engine flower`: Flower's simulation on Ray, as large as the experiment, for as long as the run lasts."""

import logging
import os
import tempfile
import threading
from functools import lru_cache
from pathlib import Path
from queue import Queue
from types import TracebackType

import ray
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from fedmef.data import Dataset
from fedmef.engines.fleet import Fleet
from fedmef.engines.flower.engine import FlowerEngine
from fedmef.engines.flower.nodes import Nodes
from fedmef.engines.flower.translation import device_number, device_reply, train_reply
from fedmef.errors import FedmefError
from fedmef.experiment import Experiment
from fedmef.wire import MaskMemory


class SimulationEngine(FlowerEngine):
    """All devices on this machine, in Ray's workers; which worker trains which device changes no bit."""

    def __init__(self, fleet: Fleet, workers: int) -> None:
        experiment, dataset = fleet.experiment, fleet.dataset
        self._folder = tempfile.TemporaryDirectory(prefix="fedmef-")
        data = dataset.folder
        if data is None:
            data = Path(self._folder.name) / "data"
            dataset.write(data)
        self._python_path = os.environ.get("PYTHONPATH")  # Flower changes it for Ray's workers
        self._over = threading.Event()
        self._failure: BaseException | None = None
        grids: Queue[Grid | None] = Queue()
        self._thread = threading.Thread(
            target=self._simulate, args=(fleet, data, workers, grids), name="flower", daemon=True
        )
        self._thread.start()
        try:
            grid = grids.get()
            self._check_running()
            assert grid is not None
            nodes = Nodes(grid, experiment.devices, poll=0.02, check_running=self._check_running)
            super().__init__(nodes, deadline=experiment.deadline)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(timeout=None if kind is None else 5)
        if self._thread.is_alive():
            ray.shutdown()  # else whatever is being trained would be trained to its end
            self._thread.join()
        if self._python_path is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = self._python_path
        self._folder.cleanup()

    def _check_running(self) -> None:
        if not self._thread.is_alive() or self._failure is not None:
            raise FedmefError(f"Flower's simulation ended: {self._failure}") from self._failure

    def _simulate(self, fleet: Fleet, data: Path, workers: int, grids: "Queue[Grid | None]") -> None:
        """Run Flower's simulation: its ServerApp only hands over its Grid, and waits for the end."""
        for name in ("flwr", "ray"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # what goes wrong comes back in a reply
        server = ServerApp()

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            grids.put(grid)
            self._over.wait()

        try:
            run_simulation(
                server,
                _client_app(fleet.experiment.model_dump_json(), data, fleet.memory),
                fleet.experiment.devices,
                backend_config={
                    "init_args": {"num_cpus": workers, "log_to_driver": False, "logging_level": "ERROR"},
                    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                },
            )
        except BaseException as error:
            self._failure = error
        finally:
            grids.put(None)


def _client_app(experiment: str, data: Path, memory: MaskMemory | None) -> ClientApp:
    """Small, because Flower sends it with every message: what is large is built once in each worker."""
    app = ClientApp()

    @app.query("device")
    def which_device(message: Message, context: Context) -> Message:
        return device_reply(message, context)

    @app.train("round")
    def train(message: Message, context: Context) -> Message:
        return train_reply(message, device_number(context), _fleet(experiment, data, memory).train)

    return app


@lru_cache(maxsize=1)
def _fleet(experiment: str, data: Path, memory: MaskMemory | None) -> Fleet:
    torch.set_num_threads(1)
    return Fleet.build(Experiment.model_validate_json(experiment), Dataset.open(data), memory)
