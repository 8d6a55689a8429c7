"""A memory limit that holds: refuses, before training, an experiment whose device does not fit."""

from collections.abc import Callable
from functools import cache

from fedmef.costs.step import Shape, measure_device_memory
from fedmef.costs.units import human_bytes
from fedmef.errors import UserError
from fedmef.experiment.settings import Experiment
from fedmef.methods import find_method

MARGIN = 0.05  # of the limit stays free: a real round was up to 5 % above a measured one

Tell = Callable[[str], None]  # what is being measured now, for a person who waits


def check_device_memory(experiment: Experiment, shape: Shape, classes: int, tell: Tell) -> None:
    """Raise `UserError` when a device, measured, needs more than `device_memory`."""
    limit = experiment.device_memory
    if limit is None:
        return
    tell("measuring what a device needs")
    needed = needed_memory(experiment, shape, classes)
    if needed > (1 - MARGIN) * limit:
        raise UserError(
            f"device_memory = {human_bytes(limit)}: a device of this experiment needs {human_bytes(needed)} "
            f"(measured; {MARGIN:.0%} of the limit stay free); 'fedmef plan' finds settings that fit"
        )


def ignored_settings(experiment: Experiment) -> set[str]:
    """What means nothing to the experiment's method."""
    recipe = find_method(experiment.method).recipe
    weights = set() if recipe.has_sparsity else {"sparsity"}
    return weights if recipe.prune_activations else weights | {"activation_sparsity", "cache_dtype"}


def needed_memory(experiment: Experiment, shape: Shape, classes: int) -> int:
    """What a device needs, measured once for each configuration and process."""
    unlimited = {"device_memory": None, "accelerator": "cpu", "data_dir": None}
    return _once(experiment.model_copy(update=unlimited), tuple(shape), classes)


@cache
def _once(experiment: Experiment, shape: Shape, classes: int) -> int:
    return measure_device_memory(experiment, shape, classes)
