"""The server's half of a Flower app: it runs the experiment that the app's configuration describes.

    app = server_app(load_model, load_data)

`load_model(classes, channels)` gives an ordinary network, and `load_data()` data of which `test` scores the
global model. Both are functions of a module, so that the run's directory can name them.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging import INFO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context, UserConfig
from flwr.serverapp import Grid, ServerApp
from flwr.supercore import log
from flwr.superlink.grid import InMemoryGrid

from fedmef.data import Dataset
from fedmef.experiment.settings import Experiment, make_experiment
from fedmef.federation.api import new_directory, resume, run
from fedmef.federation.engines.flower.engine import FlowerEngine
from fedmef.federation.engines.flower.nodes import Nodes
from fedmef.federation.engines.flower.owners import Owners
from fedmef.federation.simulated.fleet import Fleet
from fedmef.runs.callbacks import Callback
from fedmef.runs.directory import CONFIG, NODES, Run
from fedmef.runs.records import Round

if TYPE_CHECKING:
    from torch import nn

LoadModel = Callable[..., "nn.Module"]
LoadData = Callable[..., Dataset]

# Settings of the app that are none of the experiment.
OUT, RESUME, PATIENCE, BIND = "out", "resume", "patience", "bind-devices"
OWN = (OUT, RESUME, PATIENCE, BIND)


def server_app(load_model: LoadModel, load_data: LoadData) -> ServerApp:
    """A ServerApp that runs the experiment over whatever nodes its Grid has, into a run's directory."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        experiment = experiment_of(config, load_model, load_data)
        patience = float(config.get(PATIENCE, 300.0))

        out = Path(str(config[OUT])) if config.get(OUT) else new_directory(experiment)
        resumes = bool(config.get(RESUME)) and (out / CONFIG).is_file()
        owners: Owners | None = None
        callbacks: list[Callback] = [Log()]
        if config.get(BIND, True) and not isinstance(grid, InMemoryGrid):
            owners = Owners.read(out / NODES) if resumes else Owners()
            callbacks.append(KeepOwners(owners))

        def start(fleet: Fleet) -> FlowerEngine:
            nodes = Nodes(grid, experiment.devices, owners=owners)
            return FlowerEngine(nodes, deadline=experiment.deadline, patience=patience)

        options: dict[str, Any] = {"callbacks": callbacks, "start": start, "elsewhere": True}
        with ending_with_flower():
            if resumes:
                finished = resume(out, experiment.model_dump(), dataset=load_data(), **options)
            else:
                finished = run(experiment, out, dataset=load_data(), **options)
        log(INFO, "test accuracy %.2f %%, in %s", 100 * finished.summary.test_accuracy, out.absolute())

    return app


def experiment_of(config: UserConfig, load_model: LoadModel, load_data: LoadData) -> Experiment:
    """The experiment that an app's configuration describes, setting by setting, with - or _."""
    settings = {name.replace("-", "_"): value for name, value in config.items() if name not in OWN}
    return make_experiment(
        settings | {"model": _name(load_model), "dataset": _name(load_data), "engine": "flower"}
    )


class Log(Callback):
    """A line in Flower's log for every round."""

    def round_done(self, record: Round, model: object = None) -> None:
        accuracy = record.test_accuracy
        lost = sum(failed.attempt == record.attempts - 1 for failed in record.lost)
        log(
            INFO,
            "round %d: %d of %d devices answered, loss %s%s",
            record.number,
            len(record.devices) - lost,
            len(record.devices),
            record.train_loss,
            "" if accuracy is None else f", test accuracy {accuracy:.2%}",
        )


class KeepOwners(Callback):
    """Which key is which device, in the run's directory: a resumed run goes on with the same."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners

    def run_begins(self, run: Run) -> None:
        self._file = run.path / NODES
        self._owners.write(self._file)

    def round_done(self, record: Round, model: object = None) -> None:
        self._owners.write(self._file)


@contextmanager
def ending_with_flower() -> Iterator[None]:
    """Within the block this process ends when the SuperExec that started it does, as if it were killed, too.

    It would wait for its SuperLink for ever, or come back to a new one, which has started the run's next app.
    """
    parent, over = os.getppid(), threading.Event()

    def watch() -> None:
        while not over.wait(0.5):
            if os.getppid() != parent:
                os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _name(function: Callable[..., object]) -> str:
    return f"{function.__module__}:{function.__qualname__}"
