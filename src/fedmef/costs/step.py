"""What a device's training step takes, measured in a fresh process: bytes by kind, their peak, seconds."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmef.errors import FedmefError, SparsityError, UserError
from fedmef.experiment.settings import Experiment

STEPS = 3  # after fewer, the smallest blocks have not found their place yet: a few per cent less

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class StepCost:
    """Bytes and seconds of a training step of one device.

    `peak` and `peak_resident` are the most of an ordinary round and of one that adjusts, where the method has
    such rounds: extrusion and growth scores included. `peak_resident` is the whole process above one that has
    imported the libraries and trained a toy, messages included, and with freed memory given back to the
    system as a device with `device_memory` does it.

    Attributes:
        parameters, gradients, cache, peak: see `fedmef.costs.tensors.TensorCost`.
        peak_resident: most resident memory.
        seconds: of a training step, the median.
    """

    parameters: int
    gradients: int
    cache: int
    peak: int
    peak_resident: int
    seconds: float


def measure_step(
    experiment: Experiment, image_shape: tuple[int, int, int], classes: int, *, steps: int = STEPS
) -> StepCost:
    """Train a device of the experiment for this many steps, on random images, in a process of its own.

    The experiment's own batch size, model and method; one thread, on the CPU. Raises `UserError` for what is
    wrong with the experiment and `FedmefError` when the process dies.
    """
    if steps < 2:
        raise UserError(f"steps = {steps}: the time from one step to the next needs at least 2")
    return StepCost(**_ask("step", experiment, image_shape, classes, steps))


def measure_device_memory(experiment: Experiment, image_shape: tuple[int, int, int], classes: int) -> int:
    """`StepCost.peak_resident` alone, which is quicker to measure."""
    return int(_ask("memory", experiment, image_shape, classes, STEPS)["peak_resident"])


def _ask(what: str, experiment: Experiment, shape: Shape, classes: int, steps: int) -> dict[str, Any]:
    question = {
        "what": what,
        "experiment": experiment.model_dump(mode="json"),
        "image_shape": list(shape),
        "classes": classes,
        "steps": steps,
    }
    # The process finds what this one finds, a user's own modules included.
    surroundings = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
        "OMP_NUM_THREADS": "1",
    }
    finished = subprocess.run(
        [sys.executable, "-P", "-m", "fedmef.costs.step_process"],
        input=json.dumps(question),
        capture_output=True,
        text=True,
        env=surroundings,
        check=False,
    )
    if finished.returncode != 0 or not finished.stdout:
        said = finished.stderr.strip().splitlines()
        raise FedmefError(
            f"measuring a training step ended with {finished.returncode}: {said[-1] if said else 'killed'}"
        )
    answer: dict[str, Any] = json.loads(finished.stdout)
    if "mistake" in answer:
        raise (SparsityError if answer["of_sparsity"] else UserError)(answer["mistake"])
    return answer
