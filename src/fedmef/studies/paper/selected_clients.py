"""Appendix table: accuracy with fewer devices a round, ResNet50."""

from fedmef.studies.paper.base import Case, Study
from fedmef.studies.paper.scales import Scale, settings

DEVICES: dict[Scale, tuple[int, ...]] = {"smoke": (4, 3, 2, 1), "desk": (10, 5, 3, 1), "paper": (10, 5, 3, 1)}
PAPER = {
    "fedavg": (78.25, 77.47, 74.94, 66.38),
    "feddst": (72.28, 73.21, 68.26, 56.05),
    "fedtiny": (74.42, 74.52, 72.36, 61.45),
    "fedmef": (76.24, 76.33, 72.41, 61.04),
}


def cases(scale: Scale) -> list[Case]:
    """Four numbers of devices, four methods."""
    return [
        Case(
            f"{method}-devices{devices}",
            {"method": method, "devices a round": devices},
            settings(scale, method, model="resnet50", devices_per_round=devices),
            {"devices a round (paper)": theirs, "accuracy % (paper)": PAPER[method][index]},
        )
        for index, (devices, theirs) in enumerate(zip(DEVICES[scale], DEVICES["paper"], strict=True))
        for method in PAPER
    ]


STUDY = Study(
    name="selected_clients",
    source="appendix, table of selected clients",
    title="Fewer devices a round (ResNet50)",
    shows="All methods suffer from few devices; FedMef and FedTiny less than FedDST.",
    cases=cases,
)
