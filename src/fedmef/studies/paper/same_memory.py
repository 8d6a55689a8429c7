"""Ours: what a device with FedMef's memory could train by other methods: narrower, or in small batches."""

from typing import Any

from fedmef.studies.paper.base import Case, Row, Study
from fedmef.studies.paper.scales import Scale, settings
from fedmef.studies.paper.training_memory import accuracies_and_memory

# FedMef's width, and the one that leaves a BatchNorm network about the same peak.
WIDTHS: dict[Scale, tuple[int, int]] = {
    "smoke": (8, 3),
    "desk": (16, 5),
    "bench": (32, 13),
    "paper": (64, 17),
}
METHODS = ("fedavg", "feddst", "fedtiny")
# The batch that leaves FedTiny's network of full width about the same peak; FedMef's then is smaller still.
BATCHES: dict[Scale, int] = {"smoke": 10, "desk": 9, "bench": 8, "paper": 9}


def cases(scale: Scale) -> list[Case]:
    """FedMef, the others at the width that its memory allows, and both sides with smaller batches."""
    wide, narrow = WIDTHS[scale]
    return [
        _case(scale, f"fedmef-width{wide}", "fedmef", width=wide),
        *(_case(scale, f"{method}-width{narrow}", method, width=narrow) for method in METHODS),
        *(_smaller_batches(scale, method) for method in ("fedtiny", "fedmef")),
    ]


def _smaller_batches(scale: Scale, method: str) -> Case:
    usual, batch = settings(scale, method), BATCHES[scale]
    rate = usual["learning_rate"] * batch / usual["batch_size"]
    width = WIDTHS[scale][0]
    return _case(scale, f"{method}-batch{batch}", method, width=width, batch_size=batch, learning_rate=rate)


def _case(scale: Scale, name: str, method: str, **own: Any) -> Case:
    chosen = settings(scale, method, **own)
    labels: Row = {"method": method, "width": chosen["width"], "batch size": chosen["batch_size"]}
    return Case(name, labels, chosen)


STUDY = Study(
    name="same_memory",
    source="ours",
    title="Accuracy at the same memory",
    shows="On a device with the memory that FedMef needs, other methods must train a narrower network, "
    "or take smaller batches.",
    cases=cases,
    tabulate=accuracies_and_memory,
    remark="The peak is that of all tensors in a step, adjustments included. "
    "Smaller batches have a learning rate that is smaller in proportion.",
)
