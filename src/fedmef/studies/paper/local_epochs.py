"""Appendix table: accuracy with fewer local epochs, ResNet34."""

from fedmef.studies.paper.base import Case, Study
from fedmef.studies.paper.scales import Scale, settings

# Each stands for one of the paper's, which few rounds cannot pay for.
EPOCHS: dict[Scale, tuple[int, int, int]] = {"smoke": (3, 2, 1), "desk": (4, 2, 1), "paper": (10, 5, 2)}
PAPER = {
    "fedavg": (82.32, 79.87, 70.15),
    "feddst": (80.30, 76.04, 64.70),
    "fedtiny": (80.41, 77.35, 70.01),
    "fedmef": (81.18, 78.46, 70.06),
}


def cases(scale: Scale) -> list[Case]:
    """Three numbers of epochs, four methods."""
    return [
        Case(
            f"{method}-epochs{epochs}",
            {"method": method, "epochs": epochs},
            settings(scale, method, model="resnet34", local_epochs=epochs),
            {"epochs (paper)": theirs, "accuracy % (paper)": PAPER[method][index]},
        )
        for index, (epochs, theirs) in enumerate(zip(EPOCHS[scale], EPOCHS["paper"], strict=True))
        for method in PAPER
    ]


STUDY = Study(
    name="local_epochs",
    source="appendix, table of local epochs",
    title="Fewer local epochs (ResNet34)",
    shows="FedDST needs local training before it adjusts; FedMef stays ahead of both.",
    cases=cases,
)
