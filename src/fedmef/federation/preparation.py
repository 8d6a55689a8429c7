"""From an experiment to what it needs to run; whatever is wrong shows here, before anything is written.

PyTorch is needed once, to turn a model's code into a network as data. It is reached by name, so that a server
of finished networks never loads it.
"""

from dataclasses import dataclass

from fedmef.data import Dataset, SyntheticImages, load_dataset
from fedmef.device.backend import import_backend
from fedmef.device.choice import OWN_LOSS, Choice, choose_for
from fedmef.errors import UserError
from fedmef.experiment.names import load_part
from fedmef.experiment.settings import Experiment
from fedmef.federation.own_metrics import find_metrics, try_metrics
from fedmef.federation.privacy import check_private
from fedmef.methods import find_method
from fedmef.sparsity.model import Model
from fedmef.wire.job import CROSS_ENTROPY


@dataclass(frozen=True, eq=False)
class Prepared:
    """An experiment that can run.

    Attributes:
        experiment: its `backend` is never auto: all devices and the evaluation use the one that was chosen.
        dataset: its data.
        model: what it begins with.
        choice: the backend.
    """

    experiment: Experiment
    dataset: Dataset
    model: Model
    choice: Choice

    @classmethod
    def of(cls, experiment: Experiment, dataset: Dataset, model: Model) -> "Prepared":
        """With the backend that the experiment asks for, or that suits its network; own parts are tried."""
        choice = choose_for(experiment, model.network)
        if experiment.loss != CROSS_ENTROPY:
            load_part("fedmef.nn.loss", "try_loss")(
                experiment.loss, model.network.classes, experiment.accelerator
            )
        try_metrics(find_metrics(experiment), dataset.test, model.network.classes)
        return cls(experiment.model_copy(update={"backend": choice.name}), dataset, model, choice)


def prepare(experiment: Experiment, dataset: Dataset | None = None) -> Prepared:
    """Data and model of an experiment whose names are checked; raises `UserError` for what does not fit."""
    data = dataset or open_dataset(experiment)
    build = load_part("fedmef.models.initial", "initial_model")
    try:
        model = build(experiment, data.shape, data.classes, data.statistics)
    except (MemoryError, RuntimeError, OverflowError) as error:
        if ":" in experiment.model:
            raise  # code of the user's own may raise anything
        reason = str(error).strip().splitlines() or ["out of memory"]
        raise UserError(
            f"model = '{experiment.model}', width = {experiment.width}: it cannot be built "
            f"({reason[0][:200]}); a smaller one may do"
        ) from error
    return Prepared.of(experiment, data, model)


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


def check_new(experiment: Experiment) -> None:
    """Raise `UserError` for what a new run cannot have, before data are opened."""
    if experiment.warmup_rounds >= experiment.rounds:
        raise UserError(
            f"warmup_rounds = {experiment.warmup_rounds}: there are only {experiment.rounds} rounds; lower "
            "it or raise rounds"
        )
    check_names(experiment)


def check_names(experiment: Experiment) -> None:
    """Raise `UserError` for a part or an accelerator that is not there, before data are opened."""
    check_method_and_machine(experiment)
    check_network(experiment)


def check_network(experiment: Experiment) -> None:
    """Raise `UserError` when there is no such network."""
    load_part("fedmef.models", "find_builder")(experiment.model, experiment.width, experiment.stem)


def check_method_and_machine(experiment: Experiment) -> None:
    """The same without the network: a run that has begun has it as data, and needs its code no more."""
    check_method(experiment)
    if experiment.loss != CROSS_ENTROPY:
        if experiment.backend == "native":
            raise UserError(
                f"backend = 'native' and loss = '{experiment.loss}': {OWN_LOSS}; use torch or auto"
            )
        load_part("fedmef.nn.loss", "find_loss")(experiment.loss)
    find_metrics(experiment)
    if experiment.backend != "auto":  # which one that is depends on the network
        import_backend(experiment.backend)
    if experiment.accelerator != "cpu":
        load_part("fedmef.nn.backend", "check_accelerator")(experiment.accelerator)


def check_method(experiment: Experiment) -> None:
    """Raise `UserError` when a method is not there, or cannot do what is asked of it."""
    method = find_method(experiment.method)
    if method.needs_torch and experiment.backend == "native":
        raise UserError(
            f"backend = 'native' and method = '{experiment.method}': it needs torch; use torch or auto"
        )
    asked = [
        name
        for name in ("aggregation", "clip_norm", "max_update_norm", "noise_multiplier")
        if getattr(experiment, name) != Experiment.model_fields[name].default
    ]
    if asked and method.own_merge:
        raise UserError(
            f"{asked[0]} and method = '{experiment.method}': this method merges updates in its own way, each "
            "position over the devices that hold it, where a malicious device may be alone; leave one out"
        )
    if experiment.noise_multiplier:
        check_private(experiment)
