"""Table: accuracy when masks are adjusted more often, with a single local epoch."""

from fedmef.studies.paper.base import Case, Study
from fedmef.studies.paper.scales import Scale, settings

# A smoke test's few rounds leave room for short periods only; each stands for one of the paper's.
PERIODS: dict[Scale, tuple[int, int, int]] = {"smoke": (1, 2, 3), "desk": (3, 5, 10), "paper": (3, 5, 10)}
PAPER = {
    "fedtiny": ((55.09, 1.82), (58.73, 1.62), (61.18, 1.08)),
    "fedmef": ((61.94, 0.49), (62.12, 0.58), (62.77, 0.78)),
}


def cases(scale: Scale) -> list[Case]:
    """Three periods, two methods."""
    return [
        Case(
            f"{method}-period{period}",
            {"method": method, "period": period},
            settings(scale, method, local_epochs=1, adjust_every=period),
            {
                "period (paper)": theirs,
                "accuracy % (paper)": PAPER[method][index][0],
                "± (paper)": PAPER[method][index][1],
            },
        )
        for index, (period, theirs) in enumerate(zip(PERIODS[scale], PERIODS["paper"], strict=True))
        for method in PAPER
    ]


STUDY = Study(
    name="adjustment_period",
    source="table of adjustment periods",
    title="The impact of the adjustment period",
    shows="FedTiny loses accuracy when adjustments are frequent, FedMef hardly.",
    cases=cases,
)
