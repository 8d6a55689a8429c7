"""Ours, after a figure that the paper left out: the mean magnitude of what gets pruned."""

from collections.abc import Sequence

import numpy as np

from fedmef.runs.directory import Run
from fedmef.studies.paper.base import Case, Number, Result, Row, Study, accuracy_cells
from fedmef.studies.paper.scales import Scale, settings
from fedmef.studies.rows import mean

LAMBDAS = (0.0, 0.1, 0.5, 10.0)


def cases(scale: Scale) -> list[Case]:
    """Without extrusion, under BatchNorm and NSConv, then with growing λ."""
    baselines = [
        Case(method, {"method": method, "lambda": None}, settings(scale, method))
        for method in ("fedtiny", "fedmef_no_bae")
    ]
    return baselines + [
        Case(
            f"fedmef-lambda{value}",
            {"method": "fedmef", "lambda": value},
            settings(scale, "fedmef", extrusion=value),
        )
        for value in LAMBDAS
    ]


def tabulate(results: Sequence[Result]) -> list[Row]:
    """Raw magnitudes, and those relative to the final network's weights.

    NSConv divides every filter by its norm, so that its weights may have any scale: between it and BatchNorm
    only the relative magnitude compares.
    """
    return [
        {
            **result.case.labels,
            "magnitude of pruned weights (ours)": Number.of(dropped_magnitude(result.runs), ".3g"),
            "relative to active weights (ours)": Number.of(relative_magnitude(result.runs), ".3g"),
            **accuracy_cells(result),
        }
        for result in results
    ]


def dropped_magnitude(runs: Sequence[Run]) -> float | None:
    """Mean |θ_low| just before pruning, over all adjustments."""
    return mean([value for run in runs for value in _dropped(run)])


def relative_magnitude(runs: Sequence[Run]) -> float | None:
    """The same as a share of the mean |θ| of the final network's sparse layers."""
    return mean([value / _active_magnitude(run) for run in runs for value in _dropped(run)])


def _dropped(run: Run) -> list[float]:
    return [record.dropped_magnitude for record in run.rounds if record.dropped_magnitude is not None]


def _active_magnitude(run: Run) -> float:
    model = run.model()
    sparse = [name for name, layer in run.summary.layers.items() if layer.active < layer.size]
    return float(np.abs(np.concatenate([model.values(name) for name in sparse])).mean())


STUDY = Study(
    name="marked_magnitude",
    source="ours",
    title="Mean magnitude of what gets pruned",
    shows="The larger λ, the less is left in the weights that get pruned.",
    cases=cases,
    tabulate=tabulate,
)
