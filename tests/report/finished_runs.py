"""Finished runs that were never trained, with numbers that a reader can check in the head."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedmef.experiment.settings import Experiment
from fedmef.runs.directory import Run

BASE = {"width": 4, "devices": 4, "devices_per_round": 2, "batch_size": 8}


def experiment(method: str = "fedmef", seed: int = 0, **settings: Any) -> Experiment:
    return Experiment(**{**BASE, "method": method, "seed": seed, **settings})


def write_run(
    path: Path,
    asked: Experiment,
    accuracies: Sequence[float | None],
    adjustments: Mapping[int, tuple[float, float]] | None = None,
    layers: Mapping[str, tuple[int, int]] | None = None,
    device_reports: Sequence[Mapping[str, Any]] = (),
) -> Run:
    """`adjustments` are accuracies before and after, by round; `layers` active weights and sizes by name.

    Devices report the same in each round.
    """
    run = Run.create(path, asked.model_copy(update={"rounds": len(accuracies)}))
    for number, accuracy in enumerate(accuracies):
        before, after = (adjustments or {}).get(number, (None, None))
        record: dict[str, Any] = {
            "round": number,
            "test_accuracy": accuracy,
            "bytes_down": 300,
            "bytes_up": 100,
        }
        record |= {"train_loss": 1.0, "learning_rate": 0.1, "adjusted": before is not None}
        record |= {"accuracy_before_adjustment": before, "accuracy_after_adjustment": after}
        if device_reports:
            record["device_reports"] = list(device_reports)
        run.log(record)
    evaluated = [accuracy for accuracy in accuracies if accuracy is not None]
    summary = {
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
        "fedmef": "0.1.0",
        "torch": "2.13.0",
    }
    run.finish({"values": torch.zeros(1)}, summary)
    return run
