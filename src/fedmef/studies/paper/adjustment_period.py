"""Table: accuracy when masks are adjusted more often, with a single local epoch."""

from fedmef.studies.paper.base import Study
from fedmef.studies.paper.sweep import sweep

STUDY = Study(
    name="adjustment_period",
    source="table of adjustment periods",
    title="The impact of the adjustment period",
    shows="FedTiny loses accuracy when adjustments are frequent, FedMef hardly.",
    cases=sweep(
        "adjust_every",
        "period",
        # A smoke test's few rounds leave room for short periods only.
        {"smoke": (1, 2, 3), "desk": (3, 5, 10), "bench": (3, 5, 10), "paper": (3, 5, 10)},
        {
            "fedtiny": ((55.09, 1.82), (58.73, 1.62), (61.18, 1.08)),
            "fedmef_no_bae": (None, None, None),
            "fedmef": ((61.94, 0.49), (62.12, 0.58), (62.77, 0.78)),
        },
        local_epochs=1,
    ),
    remark="FedMef without extrusion (fedmef_no_bae) is ours.",
)
