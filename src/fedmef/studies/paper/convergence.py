"""Figure: test accuracy over the rounds, with an adjustment every five."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from fedmef.runs.directory import Run
from fedmef.studies.paper.base import Case, Number, Result, Row, Study, accuracy_cells
from fedmef.studies.paper.scales import Scale, settings
from fedmef.studies.rows import mean

METHODS = ("fedavg", "fl_pqsu", "feddst", "fedtiny", "fedmef")
PERIODS: dict[Scale, int] = {"smoke": 1, "desk": 3, "bench": 5, "paper": 5}
SHARES = (0.25, 0.5, 0.75)


def cases(scale: Scale) -> list[Case]:
    """One curve for each method."""
    own: dict[str, Any] = {} if scale == "paper" else {"evaluate_every": 1}  # falls between rounds
    return [
        Case(method, {"method": method}, settings(scale, method, adjust_every=PERIODS[scale], **own))
        for method in METHODS
    ]


def tabulate(results: Sequence[Result]) -> list[Row]:
    """The curve at its quarters, and the most that it fell from one evaluation to the next."""
    return [
        {
            **result.case.labels,
            **{
                f"% at {share:.0%} of rounds (ours)": Number.of(
                    mean([_accuracy_at(run, share) for run in result.runs])
                )
                for share in SHARES
            },
            **accuracy_cells(result),
            "largest fall (ours)": Number.of(mean([_largest_fall(run) for run in result.runs])),
        }
        for result in results
    ]


def _curve(run: Run) -> list[tuple[int, float]]:
    return [
        (record.number, 100 * record.test_accuracy)
        for record in run.rounds
        if record.test_accuracy is not None
    ]


def _accuracy_at(run: Run, share: float) -> float:
    """At the first evaluation when this share of the rounds is done."""
    return next(accuracy for done, accuracy in _curve(run) if done >= share * run.experiment.rounds)


def _largest_fall(run: Run) -> float:
    curve = [accuracy for _, accuracy in _curve(run)]
    return max((earlier - later for earlier, later in pairwise(curve) if earlier > later), default=0.0)


STUDY = Study(
    name="convergence",
    source="figure of convergence",
    title="Convergence",
    shows="FedMef's curve is steadier and ends higher. The paper draws it without numbers.",
    cases=cases,
    tabulate=tabulate,
)
