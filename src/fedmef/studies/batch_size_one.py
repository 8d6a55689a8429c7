"""Figure: training with batches of a single sample."""

from typing import Any

from fedmef.studies.base import Case, Study
from fedmef.studies.scales import Scale, settings

METHODS = ("fedavg", "fl_pqsu", "feddst", "fedtiny", "fedmef")
# A step for each sample costs time, and small batches bear small steps only. The paper names no other rate.
OWN: dict[Scale, dict[str, Any]] = {
    "smoke": {"devices": 50, "learning_rate": 0.02},
    "desk": {"rounds": 6, "local_epochs": 1, "adjust_every": 2, "adjust_until": 4, "learning_rate": 0.02},
    "paper": {},
}


def cases(scale: Scale) -> list[Case]:
    """Every method of the paper."""
    return [
        Case(method, {"method": method}, settings(scale, method, batch_size=1, **OWN[scale]))
        for method in METHODS
    ]


STUDY = Study(
    name="batch_size_one",
    source="figure of batch size 1",
    title="Batches of one sample",
    shows="BatchNorm has no statistics in a batch of one; NSConv needs none, so FedMef is far ahead. "
    "The paper draws it without numbers.",
    cases=cases,
    remark="Below paper scale the learning rate is 0.02: small batches bear small steps only.",
)
