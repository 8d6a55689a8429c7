"""Appendix table: accuracy with fewer devices a round, ResNet50."""

from fedmef.studies.paper.base import Study
from fedmef.studies.paper.sweep import sweep

STUDY = Study(
    name="selected_clients",
    source="appendix, table of selected clients",
    title="Fewer devices a round (ResNet50)",
    shows="All methods suffer from few devices; FedMef and FedTiny less than FedDST.",
    cases=sweep(
        "devices_per_round",
        "devices a round",
        {"smoke": (4, 3, 2, 1), "desk": (10, 5, 3, 1), "bench": (10, 5, 3, 1), "paper": (10, 5, 3, 1)},
        {
            "fedavg": (78.25, 77.47, 74.94, 66.38),
            "feddst": (72.28, 73.21, 68.26, 56.05),
            "fedtiny": (74.42, 74.52, 72.36, 61.45),
            "fedmef": (76.24, 76.33, 72.41, 61.04),
        },
        model="resnet50",
    ),
)
