"""A formula in place of the measurement, which takes seconds: what counts is the search."""

from fedmef.costs.device_process import ProcessCost
from fedmef.costs.exchange import MeasuredExchange
from fedmef.experiment.settings import Experiment

SHAPE = (3, 32, 32)


def formula(experiment: Experiment, shape: object, classes: int) -> ProcessCost:
    """10 MB, 20 MB times the density, and a MB a sample times what is kept."""
    kept = (1 - experiment.activation_sparsity) * (0.5 if experiment.cache_dtype == "fp16" else 1)
    return process(1e6 * (10 + 20 * (1 - experiment.sparsity) + experiment.batch_size * (0.1 + kept)))


def process(count: float, backend: str = "native") -> ProcessCost:
    """Of this many bytes."""
    return ProcessCost(backend, round(count), 0.5, MeasuredExchange(7, 8, 9, 10))
