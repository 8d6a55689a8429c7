"""A device's whole process, measured: interpreter, libraries, messages, data and training, on either backend.

The messages of an ordinary round and of one that adjusts are made here, with PyTorch, and lie in a scratch
folder next to a few batches of noise. A fresh process then gets them as a device would, and says the most
resident memory that it had: `python -m fedmef.device`, without PyTorch, where the device runs on the native
kernels; otherwise one that imports PyTorch (`fedmef.costs.torch_process`). Both give freed memory back.

A round that adjusts also trains as an ordinary one does, and needs more. So where there is one, it takes
several steps, and the ordinary round a single one: only the length of its answer is new.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from fedmef.costs.exchange import MeasuredExchange
from fedmef.device.choice import choose_for
from fedmef.errors import FedmefError, UserError
from fedmef.experiment.names import load_part
from fedmef.experiment.settings import MACHINE_FIELDS, Experiment
from fedmef.methods import find_method
from fedmef.sparsity.model import Model

STEPS = 3  # after fewer, the smallest blocks have not found their place yet: a few per cent less
TORCH_STEPS = 2  # of PyTorch, whose steps take longer: the first one is slower than the others
SAME_DEVICE = {"fedmef_restart": "fedmef"}  # what only a number tells apart needs the same on a device

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class ProcessCost:
    """One device of an experiment in a process of its own, over an ordinary and an adjusting round.

    Attributes:
        backend: what it runs on, native or torch.
        process: the most resident bytes of the whole process.
        seconds: CPU time of a training step with one thread, the median.
        exchange: bytes of its messages.
    """

    backend: str
    process: int
    seconds: float
    exchange: MeasuredExchange


@dataclass(frozen=True)
class Rounds:
    """What a device is given, as files.

    Attributes:
        backend: what the experiment's devices run on.
        messages: of an ordinary round, and of one that adjusts if there is any.
        data: for each message, a folder with a few batches of noise.
    """

    backend: str
    messages: tuple[Path, ...]
    data: tuple[Path, ...]

    @property
    def answers(self) -> tuple[Path, ...]:
        """Where the device's answers go."""
        return tuple(message.with_suffix(".answer") for message in self.messages)


def measure_process(
    experiment: Experiment, image_shape: Shape, classes: int, model: Model | None = None
) -> ProcessCost:
    """Let a device of the experiment train on random images, in a process of its own, with one thread.

    With a `model` of the experiment's network, nothing is built. Without one, what was measured before, for
    another seed or where a setting means nothing, is not measured again. Raises `UserError` for what is wrong
    with the experiment and `FedmefError` when the process dies.
    """
    if model is not None:
        return _measured(experiment, image_shape, classes, model)
    without = {*MACHINE_FIELDS, "seed", *ignored_settings(experiment)}
    standard = {name: Experiment.model_fields[name].get_default() for name in without}
    standard["method"] = SAME_DEVICE.get(experiment.method, experiment.method)
    return _once(experiment.model_copy(update=standard), tuple(image_shape), classes)


def measure_torch_dense(experiment: Experiment, image_shape: Shape, classes: int) -> ProcessCost:
    """PyTorch's dense device: FedAvg with BatchNorm, all else as it is."""
    backend = "torch" if experiment.backend == "native" else experiment.backend  # auto takes torch for it
    dense = experiment.model_copy(update={"method": "fedavg", "backend": backend})
    return measure_process(dense, image_shape, classes)


def ignored_settings(experiment: Experiment) -> set[str]:
    """What means nothing to the experiment's method."""
    recipe = find_method(experiment.method).recipe
    weights = set() if recipe.has_sparsity else {"sparsity"}
    return weights if recipe.prune_activations else weights | {"activation_sparsity", "cache_dtype"}


@cache
def _once(experiment: Experiment, shape: Shape, classes: int) -> ProcessCost:
    return _measured(experiment, shape, classes, None)


def _measured(experiment: Experiment, shape: Shape, classes: int, model: Model | None) -> ProcessCost:
    with TemporaryDirectory(prefix="fedmef-") as folder:
        rounds = write_rounds(experiment, shape, classes, Path(folder), model)
        train = _on_native if rounds.backend == "native" else _on_torch
        peak, times = train(experiment, rounds)
        return ProcessCost(rounds.backend, peak, median(times[1:]), _exchange(rounds))


def write_rounds(
    experiment: Experiment, shape: Shape, classes: int, folder: Path, model: Model | None = None
) -> Rounds:
    """Make the messages and the data of an experiment's device."""
    # Found at run time: it needs PyTorch, which a server that never asks for a measurement does not.
    make_messages, make_samples = (
        load_part("fedmef.costs.noise", name) for name in ("noise_messages", "noise_samples")
    )
    with redirect_stdout(sys.stderr):  # whatever a user's own model prints is no answer of ours
        network, messages = make_messages(experiment, shape, classes, model)
    backend = choose_for(experiment.model_copy(update={"accelerator": "cpu"}), network).name
    files = tuple(folder / f"{number}.message" for number in range(len(messages)))
    for file, message in zip(files, messages, strict=True):
        file.write_bytes(message)
    several = STEPS if backend == "native" else TORCH_STEPS
    data = tuple(folder / f"{number}.data" for number in range(len(messages)))
    for place in data:
        steps = several if place == data[-1] else 1
        samples = make_samples(steps * experiment.batch_size, shape, classes)
        place.mkdir()
        np.save(place / "images.npy", samples.images)
        np.save(place / "labels.npy", samples.labels)
    return Rounds(backend, files, data)


def native_command(rounds: Rounds, number: int, method: str, program: str = "fedmef.device") -> list[str]:
    """What trains a round without PyTorch, given the name of the experiment's method."""
    files = [str(rounds.messages[number]), str(rounds.answers[number])]
    own = ["--method", method] if ":" in method else []
    options = ["--data", str(rounds.data[number]), "--trust-server", *own]
    return [sys.executable, "-P", "-m", program, *files, *options]


def torch_command(experiment: Experiment, rounds: Rounds) -> list[str]:
    """What trains all rounds on PyTorch."""
    files = zip(rounds.messages, rounds.answers, rounds.data, strict=True)
    question = {
        "experiment": experiment.model_dump(mode="json"),
        "rounds": [[str(path) for path in paths] for paths in files],
    }
    return [sys.executable, "-P", "-m", "fedmef.costs.torch_process", json.dumps(question)]


def surroundings() -> dict[str, str]:
    """Of a device's process: it finds what this one finds, a user's own modules included; one thread."""
    path = os.pathsep.join(dict.fromkeys(path or str(Path.cwd()) for path in sys.path))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "FEDMEF_THREADS": "1"}


def _on_native(experiment: Experiment, rounds: Rounds) -> tuple[int, list[float]]:
    """Each round in a process of its own; the times are those of the last."""
    every = [
        _ask(native_command(rounds, number, experiment.method, "fedmef.costs.native_process"))
        for number in range(len(rounds.messages))
    ]
    return max(peak for peak, _ in every), every[-1][1]


def _on_torch(experiment: Experiment, rounds: Rounds) -> tuple[int, list[float]]:
    """All rounds in one process: PyTorch takes long to import, and then stays."""
    peak, times = _ask(torch_command(experiment, rounds))
    return peak, times[-TORCH_STEPS:]


def _ask(command: Sequence[str]) -> tuple[int, list[float]]:
    """The most resident bytes of a process, and the CPU seconds of each of its steps."""
    ended = subprocess.run(command, capture_output=True, text=True, env=surroundings(), check=False)
    said = ended.stderr.strip().splitlines()
    if ended.returncode == UserError.exit_code and said:
        raise UserError(said[-1])
    if ended.returncode or not ended.stdout:
        raise FedmefError(
            f"the process of a device ended with {ended.returncode}: {said[-1] if said else 'killed'}"
        )
    peak, *times = ended.stdout.splitlines()[-1].split()
    return int(peak), [float(time) for time in times]


def _exchange(rounds: Rounds) -> MeasuredExchange:
    down = [file.stat().st_size for file in rounds.messages]
    up = [file.stat().st_size for file in rounds.answers]
    adjusting = (down[1], up[1]) if len(down) > 1 else (None, None)
    return MeasuredExchange(down[0], up[0], *adjusting)
