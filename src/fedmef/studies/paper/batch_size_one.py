"""Figure: training with batches of a single sample."""

from typing import Any

from fedmef.methods import find_method
from fedmef.studies.paper.base import Case, Study
from fedmef.studies.paper.scales import BENCH_WIDTH, Scale, settings

METHODS = ("fedavg", "fl_pqsu", "feddst", "fedtiny", "fedmef")
# A step for each sample costs time.
OWN: dict[Scale, dict[str, Any]] = {
    "smoke": {"devices": 50},
    "desk": {
        "devices_per_round": 5,
        "rounds": 6,
        "local_epochs": 1,
        "learning_rate_decay": 0.65,
        "adjust_every": 2,
        "adjust_until": 4,
    },
    "bench": {
        "width": BENCH_WIDTH,
        "devices_per_round": 5,
        "rounds": 30,
        "local_epochs": 1,
        "learning_rate_decay": 0.92,
        "adjust_every": 2,
        "adjust_until": 18,
    },
    "paper": {},
}
# Small batches tolerate small steps only; the paper names no other rate than its usual one: it diverges.
# These parts of the usual rate were the best on validation data (docs/notes/tuning.md).
SMALLER_STEPS = {"nsconv": 8, "batchnorm": 4}


def cases(scale: Scale) -> list[Case]:
    """Every method of the paper."""
    return [Case(method, {"method": method}, _settings(scale, method)) for method in METHODS]


def _settings(scale: Scale, method: str) -> dict[str, Any]:
    # What bench scale trains with otherwise was chosen for larger batches: here it is desk's, for longer.
    usual = settings("desk" if scale == "bench" else scale, method, **OWN[scale])
    rate = usual["learning_rate"] / SMALLER_STEPS[find_method(method).recipe.norm]
    return {**usual, "batch_size": 1, "learning_rate": rate, "gamma": 1.0}


STUDY = Study(
    name="batch_size_one",
    source="figure of batch size 1",
    title="Batches of one sample",
    shows="BatchNorm has no statistics in a batch of one; NSConv needs none, so FedMef is far ahead. "
    "The paper draws it without numbers.",
    cases=cases,
    remark="The learning rate is an eighth (NSConv) or a quarter (BatchNorm) of that of larger batches.",
)
