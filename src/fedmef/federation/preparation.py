"""From an experiment to a fleet that can run it; whatever is wrong shows here, before anything is written."""

import torch

from fedmef.data import Dataset, Split, SyntheticImages, batches, load_dataset
from fedmef.errors import UserError
from fedmef.experiment.settings import Experiment
from fedmef.federation.engines import Fleet
from fedmef.federation.privacy import check_private
from fedmef.methods import Method, build_method
from fedmef.models import find_builder
from fedmef.wire import MaskMemory


def build_fleet(
    experiment: Experiment,
    dataset: Dataset | None = None,
    memory: MaskMemory | None = None,
    *,
    elsewhere: bool = False,
) -> Fleet:
    """Everything that an experiment needs to run here; raises `UserError` for what is not there.

    With `elsewhere`, devices have their own data and masks.
    """
    check_names(experiment)
    data = dataset or open_dataset(experiment)
    fleet = Fleet.elsewhere(experiment, data) if elsewhere else Fleet.build(experiment, data, memory)
    check_fit(fleet)
    return fleet


def open_dataset(experiment: Experiment) -> Dataset:
    """The experiment's data set."""
    size = experiment.synthetic_size
    synthetic = SyntheticImages(
        shape=(3, size, size),
        train=experiment.synthetic_train,
        test=experiment.synthetic_test,
        seed=experiment.seed,
    )
    return load_dataset(experiment.dataset, experiment.data_dir, synthetic=synthetic)


def check_names(experiment: Experiment) -> None:
    """Raise `UserError` for a method, network or device that is not there, before data are looked for."""
    check_aggregation(build_method(experiment))
    find_builder(experiment.model, experiment.width, experiment.stem)
    check_device(experiment.device)


def check_aggregation(method: Method) -> None:
    """Raise `UserError` when a method cannot aggregate as asked: one that merges updates in its own way."""
    experiment = method.experiment
    asked = [
        name
        for name in ("aggregation", "clip_norm", "max_update_norm", "noise_multiplier")
        if getattr(experiment, name) != Experiment.model_fields[name].default
    ]
    if asked and type(method).aggregate is not Method.aggregate:
        raise UserError(
            f"{asked[0]} and method = '{experiment.method}': this method merges updates in its own way, each "
            "position over the devices that hold it, where a single liar may be alone; leave one of them out"
        )
    if experiment.noise_multiplier:
        check_private(method)


def check_fit(fleet: Fleet) -> None:
    """Raise `UserError` when the network cannot take the data, before anything is written."""
    experiment, dataset = fleet.experiment, fleet.dataset
    two = Split(dataset.test.images[:2], dataset.test.labels[:2])
    try:
        images, labels = next(
            batches(
                two,
                torch.arange(len(two)),
                2,
                *dataset.statistics(),
                generator=None,
                device=experiment.device,
            )
        )
        with torch.no_grad():
            outputs = fleet.model.eval()(images)
    except Exception as error:  # a user's own network may raise anything
        raise UserError(
            f"model '{experiment.model}' cannot take images of shape {list(dataset.shape)}: {error}"
        ) from error
    if outputs.shape != (len(labels), dataset.classes):
        raise UserError(
            f"model '{experiment.model}' answers {list(outputs.shape)} to {len(labels)} images: "
            f"it must answer one number for each of the {dataset.classes} classes"
        )


def check_device(name: str) -> None:
    """Raise `UserError` when this machine has no such device."""
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda"):
            raise RuntimeError
    except RuntimeError:
        raise UserError(f"device = '{name}': must be cpu, cuda or cuda:N") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"device = '{name}': this machine has {torch.cuda.device_count()} CUDA devices; use cpu"
        )
