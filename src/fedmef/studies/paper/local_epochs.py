"""Appendix table: accuracy with fewer local epochs, ResNet34."""

from fedmef.studies.paper.base import Study
from fedmef.studies.paper.sweep import sweep

STUDY = Study(
    name="local_epochs",
    source="appendix, table of local epochs",
    title="Fewer local epochs (ResNet34)",
    shows="FedDST needs local training before it adjusts; FedMef stays ahead of both.",
    cases=sweep(
        "local_epochs",
        "epochs",
        # Few rounds cannot pay for as many epochs as the paper has.
        {"smoke": (3, 2, 1), "desk": (4, 2, 1), "bench": (4, 2, 1), "paper": (10, 5, 2)},
        {
            "fedavg": (82.32, 79.87, 70.15),
            "feddst": (80.30, 76.04, 64.70),
            "fedtiny": (80.41, 77.35, 70.01),
            "fedmef": (81.18, 78.46, 70.06),
        },
        model="resnet34",
    ),
)
