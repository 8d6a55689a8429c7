"""Ours: test accuracy just before and just after each adjustment of the masks."""

from collections.abc import Sequence

from fedmef.studies.paper.base import Case, Number, Result, Row, Study
from fedmef.studies.paper.scales import Scale, settings
from fedmef.studies.rows import mean

METHODS = ("fedtiny", "fedmef_no_bae", "fedmef")


def cases(scale: Scale) -> list[Case]:
    """With extrusion and without, and FedTiny."""
    return [Case(method, {"method": method}, settings(scale, method)) for method in METHODS]


def tabulate(results: Sequence[Result]) -> list[Row]:
    """A row for each adjustment, and one for all of a method's; means over the seeds."""
    return [row for result in results for row in _rows(result)]


def _rows(result: Result) -> list[Row]:
    adjusted = [record for run in result.runs for record in run.rounds if record.drop is not None]
    rounds = sorted({record.number for record in adjusted})
    groups = {str(number): [record for record in adjusted if record.number == number] for number in rounds}
    rows: list[Row] = []
    for round_name, records in [*groups.items(), ("all", adjusted)]:
        before = mean([100 * (record.accuracy_before_adjustment or 0.0) for record in records])
        after = mean([100 * (record.accuracy_after_adjustment or 0.0) for record in records])
        magnitudes = [record.dropped_magnitude for record in records if record.dropped_magnitude is not None]
        rows.append(
            {
                **result.case.labels,
                "round": round_name,
                "before % (ours)": Number.of(before),
                "after % (ours)": Number.of(after),
                "drop (ours)": None if before is None or after is None else Number(before - after),
                "magnitude of pruned weights (ours)": Number.of(mean(magnitudes), ".3g"),
            }
        )
    return rows


STUDY = Study(
    name="post_pruning_drop",
    source="ours",
    title="Accuracy lost at each adjustment",
    shows="Pruning weights that were extruded before costs less accuracy: direct evidence for BaE.",
    cases=cases,
    tabulate=tabulate,
)
