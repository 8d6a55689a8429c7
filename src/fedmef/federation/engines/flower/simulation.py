"""`--engine flower`: Flower's simulation on Ray, as large as the experiment, for as long as the run lasts."""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from queue import Queue
from types import FrameType, TracebackType

import ray
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from fedmef.data import Dataset
from fedmef.errors import FedmefError, NoAnswerError
from fedmef.experiment.settings import Experiment
from fedmef.federation.engines.base import Lost
from fedmef.federation.engines.flower.engine import FlowerEngine
from fedmef.federation.engines.flower.nodes import Nodes
from fedmef.federation.engines.flower.translation import (
    content_of,
    device_number,
    device_reply,
    train_reply,
)
from fedmef.federation.engines.scratch import Scratch
from fedmef.federation.simulated.fleet import Fleet
from fedmef.wire.store import Store

# Besides training, a round may have to start a worker, where PyTorch is imported.
START_SECONDS = 120.0
END_SECONDS = 5.0


class SimulationEngine(FlowerEngine):
    """All devices on this machine, in Ray's workers; which worker trains which device changes no bit."""

    def __init__(self, fleet: Fleet, workers: int) -> None:
        experiment, dataset = fleet.experiment, fleet.dataset
        self._workers = workers
        self._scratch = Scratch()
        data = dataset.folder
        if data is None:
            data = self._scratch.folder / "data"
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
        # First of all: Flower would wait for whatever is still being trained, though it may have no end.
        ray.shutdown()
        self._over.set()
        self._thread.join(END_SECONDS)
        if self._thread.is_alive():  # it was still starting Ray
            ray.shutdown()
            self._thread.join()
        if self._python_path is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = self._python_path
        self._scratch.remove()

    def _patience(self, devices: int) -> float | None:
        """A device's own time ends at the deadline, in `_on_time`; but it may have to wait for a worker."""
        if self._deadline is None:
            return None
        return self._deadline * -(-devices // self._workers) + START_SECONDS

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
                _client_app(fleet.experiment.model_dump_json(), data, fleet.store),
                fleet.experiment.devices,
                backend_config={
                    "init_args": {"num_cpus": workers, "log_to_driver": False, "logging_level": "ERROR"},
                    "client_resources": {
                        "num_cpus": 1,
                        "num_gpus": 0.0,
                        # Flower hands these to Ray. A worker that dies is replaced, and its device tried once
                        # more: what may not be tried again, Ray does not keep until the new worker is there.
                        "max_restarts": -1,
                        "max_task_retries": 1,
                    },
                },
            )
        except BaseException as error:
            self._failure = error
        finally:
            grids.put(None)


def _client_app(experiment: str, data: Path, store: Store) -> ClientApp:
    """Small, because Flower sends it with every message: what is large is built once in each worker."""
    app = ClientApp()

    @app.query("device")
    def which_device(message: Message, context: Context) -> Message:
        return device_reply(message, context)

    @app.train("round")
    def train(message: Message, context: Context) -> Message:
        return _train(message, device_number(context), _fleet(experiment, data, store))

    return app


def _train(message: Message, device: int, fleet: Fleet) -> Message:
    def train() -> bytes:
        with _on_time(fleet.experiment.deadline):
            return fleet.train(device, content_of(message))

    return train_reply(message, device, train)


@contextmanager
def _on_time(deadline: float | None) -> Iterator[None]:
    """Interrupt what takes longer, so that its worker is free again: Ray trains in the main thread."""
    if deadline is None:
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise NoAnswerError(Lost.too_late(deadline).reason)

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, deadline)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@lru_cache(maxsize=1)
def _fleet(experiment: str, data: Path, store: Store) -> Fleet:
    fleet = Fleet.build(Experiment.model_validate_json(experiment), Dataset.open(data), store)
    fleet.warm_up()
    return fleet
