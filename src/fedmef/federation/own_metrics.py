"""Metrics of the user's own: functions of the test data's logits and labels."""

import math
import warnings
from collections.abc import Callable, Mapping
from numbers import Real

import numpy as np

from fedmef.data.dataset import Split
from fedmef.errors import FedmefWarning, UserError
from fedmef.experiment.names import load_object
from fedmef.experiment.settings import Experiment
from fedmef.sparsity.arrays import Floats, Integers

Metric = Callable[[Floats, Integers], float]  # of logits [n, classes] and labels [n]
Values = dict[str, float | None]

LONGEST_REASON = 200


def find_metrics(experiment: Experiment) -> dict[str, Metric]:
    """An experiment's metrics by their names; raises `UserError` for one that is not there."""
    found: dict[str, Metric] = {}
    for name, path in (metric.split("=") for metric in experiment.metrics):
        own = load_object(f"metric {name} =", path)
        if not callable(own):
            raise UserError(f"metric {name} = '{path}' is {type(own).__name__}; name a function")
        found[name] = own
    return found


def measured(metrics: Mapping[str, Metric], logits: Floats, labels: Integers) -> Values:
    """What they give; None for a network that diverged and, with a warning, for what is no finite number.

    A precision of 0/0 in one round must not end a run of hours.
    """
    values: dict[str, float | None] = dict.fromkeys(metrics)
    if np.isfinite(logits).all():
        for name, metric in metrics.items():
            try:
                values[name] = _one(name, metric, logits, labels)
            except UserError as error:
                warnings.warn(f"{error}; it is recorded as missing", FedmefWarning, stacklevel=2)
    return values


def try_metrics(metrics: Mapping[str, Metric], test: Split, classes: int) -> None:
    """Raise `UserError` for what will not do, before hours of training: on noise, and the real labels."""
    if metrics:
        noise = np.random.default_rng(0).standard_normal((len(test), classes), dtype=np.float32)
        for name, metric in metrics.items():
            _one(name, metric, noise, test.labels)


def _one(name: str, metric: Metric, logits: Floats, labels: Integers) -> float:
    logits, labels = logits.view(), labels.view()
    logits.flags.writeable = labels.flags.writeable = False  # each gets what the others got
    try:
        value: object = metric(logits, labels)
        value = value.item() if hasattr(value, "item") else value  # of NumPy or PyTorch
    except Exception as error:  # code of the user's own may raise anything
        raise UserError(
            f"metric '{name}' raised {type(error).__name__} for logits of shape {list(logits.shape)}: "
            f"{str(error)[:LONGEST_REASON]}; correct it"
        ) from error
    if not isinstance(value, Real) or not math.isfinite(value):
        raise UserError(
            f"metric '{name}' gave {repr(value)[:LONGEST_REASON]}: it must give one finite number"
        )
    return float(value)
