"""Appendix table: FedMef next to dense networks, accuracy and memory."""

from fedmef.studies.paper.base import Case, Study
from fedmef.studies.paper.scales import Scale, settings
from fedmef.studies.paper.training_memory import accuracies_and_memory

# (network, method): accuracy %, estimated MB
PAPER = {
    ("mobilenet_v2", "fedmef"): (65.50, 84.94),
    ("mobilenet_v2", "fedavg_sap"): (64.04, 101.28),
    ("mobilenet_v2", "fedavg"): (64.28, 148.63),
    ("resnet18", "fedmef"): (81.73, 45.91),
    ("resnet18", "fedavg_sap"): (81.32, 111.51),
    ("resnet18", "fedavg"): (81.15, 120.74),
}


def cases(scale: Scale) -> list[Case]:
    """Two networks; FedMef at 80 %."""
    return [
        Case(
            f"{model}-{method}",
            {"network": model, "method": method},
            settings(scale, method, model=model, sparsity=0.8),
            {"accuracy % (paper)": accuracy, "memory MB (paper, estimated)": megabytes},
        )
        for (model, method), (accuracy, megabytes) in PAPER.items()
    ]


STUDY = Study(
    name="dense_comparison",
    source="appendix, table of dense models",
    title="FedMef next to dense networks",
    shows="SAP keeps a dense network's accuracy with less memory, and FedMef at 80 % keeps it with least.",
    cases=cases,
    tabulate=accuracies_and_memory,
    remark="The paper's 120.74 MB fit a ResNet18 with ImageNet's stem; ours has CIFAR's, as its FLOPs "
    "do, and at desk and bench scale a strided one.",
)
