"""The two halves of a Flower app: they run the experiment that the app's configuration describes.

    # server_app.py                              # client_app.py
    app = server_app(load_model, load_data)      app = client_app(load_model, load_data)

`load_model(classes, channels)` gives an ordinary network, `load_data(partition_id)` the data of one device,
and `load_data()` the server's, of which `test` scores the global model. Both are functions of a module, so
that the run's directory can name them.
"""

from collections.abc import Callable
from logging import INFO
from pathlib import Path

import torch
from flwr.app import Context, Message, UserConfig
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.supercore import log
from flwr.supercore.utils import get_flwr_home
from torch import nn

from fedmef.data import Dataset
from fedmef.device.device import Device
from fedmef.experiment.settings import Experiment, make_experiment
from fedmef.federation.api import new_directory, one_thread, resume, run
from fedmef.federation.engines.flower.engine import FlowerEngine
from fedmef.federation.engines.flower.nodes import Nodes
from fedmef.federation.engines.flower.translation import device_number, device_reply, train_reply
from fedmef.federation.simulated.fleet import Fleet, prepared_model
from fedmef.methods import build_method
from fedmef.runs.directory import CONFIG, Record
from fedmef.wire import MaskMemory

LoadModel = Callable[..., nn.Module]
LoadData = Callable[..., Dataset]

# Settings of the app that are none of the experiment.
OUT, RESUME, PATIENCE = "out", "resume", "patience"
# And of a node, beside its partition-id.
MEMORY = "memory"


def server_app(load_model: LoadModel, load_data: LoadData) -> ServerApp:
    """A ServerApp that runs the experiment over whatever nodes its Grid has, into a run's directory."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        experiment = experiment_of(config, load_model, load_data)
        patience = float(config.get(PATIENCE, 300.0))

        def start(fleet: Fleet) -> FlowerEngine:
            return FlowerEngine(
                Nodes(grid, experiment.devices), deadline=experiment.deadline, patience=patience
            )

        out = Path(str(config[OUT])) if config.get(OUT) else new_directory(experiment)
        if config.get(RESUME) and (out / CONFIG).is_file():
            # All of it: the devices know only the configuration of now.
            now = experiment.model_dump()
            finished = resume(out, now, dataset=load_data(), watch=_tell, start=start, elsewhere=True)
        else:
            finished = run(experiment, out, dataset=load_data(), watch=_tell, start=start, elsewhere=True)
        log(INFO, "test accuracy %.2f %%, in %s", 100 * finished.summary["test_accuracy"], out.absolute())

    return app


def client_app(load_model: LoadModel, load_data: LoadData) -> ClientApp:
    """A ClientApp that is one device: its data never leave it."""
    app = ClientApp()

    @app.query("device")
    def which_device(message: Message, context: Context) -> Message:
        return device_reply(message, context)

    @app.train("round")
    def train(message: Message, context: Context) -> Message:
        return _device_round(message, context, load_model, load_data)

    return app


def _device_round(message: Message, context: Context, load_model: LoadModel, load_data: LoadData) -> Message:
    """Not within `client_app`: Ray pickles what is, with whatever it names, and cannot pickle torch."""
    experiment = experiment_of(context.run_config, load_model, load_data)
    number = device_number(context)
    dataset = load_data(number)
    method = build_method(experiment)
    model = prepared_model(experiment, method, dataset.classes, dataset.shape[0])
    samples = torch.arange(len(dataset.train))
    device = Device(number, method, model, dataset, samples, mask_memory(experiment, context))
    with one_thread():
        return train_reply(message, number, lambda _, content: device.train(content))


def mask_memory(experiment: Experiment, context: Context) -> MaskMemory | None:
    """Where a device keeps masks between rounds, whatever becomes of its SuperNode in between."""
    if not experiment.remember_masks:
        return None
    default = get_flwr_home() / "fedmef" / f"device-{device_number(context)}"
    return MaskMemory(Path(str(context.node_config.get(MEMORY, default))))


def experiment_of(config: UserConfig, load_model: LoadModel, load_data: LoadData) -> Experiment:
    """The experiment that an app's configuration describes, setting by setting, with - or _."""
    settings = {
        name.replace("-", "_"): value for name, value in config.items() if name not in (OUT, RESUME, PATIENCE)
    }
    return make_experiment(
        settings | {"model": _name(load_model), "dataset": _name(load_data), "engine": "flower"}
    )


def _name(function: Callable[..., object]) -> str:
    return f"{function.__module__}:{function.__qualname__}"


def _tell(record: Record) -> None:
    accuracy = record["test_accuracy"]
    log(
        INFO,
        "round %d: %d of %d devices answered, loss %s%s",
        record["round"],
        len(record["devices"]) - sum(lost["attempt"] == record["attempts"] - 1 for lost in record["lost"]),
        len(record["devices"]),
        record["train_loss"],
        "" if accuracy is None else f", test accuracy {accuracy:.2%}",
    )
