"""Experiments of a second, and finished runs that were never trained, with numbers to check in the head."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmef.experiment.settings import Experiment, make_experiment
from fedmef.runs.directory import Run
from fedmef.runs.records import DeviceReport
from tests.runs.written import NETWORK, a_round, a_state, a_summary

# On the digits.
SMALL: dict[str, Any] = {
    "width": 4,
    "devices": 4,
    "devices_per_round": 2,
    "rounds": 2,
    "local_epochs": 1,
    "batch_size": 32,
    "engine": "inline",
}


def small(method: str = "fedmef", seed: int = 0, **settings: Any) -> Experiment:
    return make_experiment({**SMALL, "method": method, "seed": seed, **settings})


def write_run(
    path: Path,
    experiment: Experiment,
    accuracies: Sequence[float | None],
    adjustments: Mapping[int, tuple[float, float]] | None = None,
    layers: Mapping[str, tuple[int, int]] | None = None,
    device_reports: Sequence[DeviceReport] = (),
    **summary: Any,
) -> Run:
    """A run of the digits with these accuracies; 300 bytes go down in each round, and 100 up.

    `adjustments` are accuracies before and after, by round; `layers` active weights and sizes by name.
    Devices report the same in each round. `summary` changes what follows from all this.
    """
    run = Run.create(path, experiment.model_copy(update={"rounds": len(accuracies)}), NETWORK)
    for number, accuracy in enumerate(accuracies):
        before, after = (adjustments or {}).get(number, (None, None))
        run.log(
            a_round(
                number,
                test_accuracy=accuracy,
                device_reports=list(device_reports),
                adjusted=before is not None,
                accuracy_before_adjustment=before,
                accuracy_after_adjustment=after,
            )
        )
    evaluated = [accuracy for accuracy in accuracies if accuracy is not None]
    result: dict[str, Any] = {
        "test_accuracy": evaluated[-1],
        "best_test_accuracy": max(evaluated),
        "rounds": len(accuracies),
        "adjustments": len(adjustments or {}),
        "bytes_down": 300 * len(accuracies),
        "bytes_up": 100 * len(accuracies),
        "seconds": 10.0,
        "parameters": 7,
        "parameters_if_dense": 70,
        "classes": 10,
        "image_shape": [1, 8, 8],
        "layers": {name: {"active": few, "size": all_} for name, (few, all_) in (layers or {}).items()},
    }
    run.finish(a_state(), a_summary(**{**result, **summary}))
    return run
