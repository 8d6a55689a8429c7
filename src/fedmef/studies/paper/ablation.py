"""Figure: FedMef with one of its parts taken away."""

from fedmef.studies.paper.base import Case, Study
from fedmef.studies.paper.scales import Scale, settings

METHODS = ("fedmef", "fedmef_no_bae", "fedmef_no_sap", "fedmef_restart")
SPARSITIES: dict[Scale, tuple[float, ...]] = {
    "smoke": (0.9,),
    "desk": (0.9,),
    "bench": (0.9,),
    "paper": (0.95, 0.9, 0.8),
}


def cases(scale: Scale) -> list[Case]:
    """The paper's three variants, and ours that restarts the learning rate without any penalty."""
    return [
        Case(
            f"{method}-sparsity{sparsity}",
            {"method": method, "sparsity": sparsity},
            settings(scale, method, sparsity=sparsity),
        )
        for sparsity in SPARSITIES[scale]
        for method in METHODS
    ]


STUDY = Study(
    name="ablation",
    source="figure of the ablation",
    title="What each part of FedMef does",
    shows="Both extrusion (BaE) and scaled activation pruning (SAP) add accuracy. "
    "The paper draws it without numbers.",
    cases=cases,
    remark="Restarting without a penalty (fedmef_restart) is ours.",
)
