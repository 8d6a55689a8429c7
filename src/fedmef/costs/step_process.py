"""The process that `fedmef.costs.step` starts: a question as JSON on stdin, the answer as JSON on stdout."""

import json
import os
import sys
import time
from dataclasses import asdict
from itertools import pairwise
from statistics import median
from typing import Any, cast

from fedmef.costs.noise import ON_NOISE, noise_model, noise_samples, round_jobs
from fedmef.costs.tensors import measure_tensors
from fedmef.device.backend import Backend, Step, backend_for
from fedmef.device.device import Device
from fedmef.device.resident import baseline_resident, forget_peak, give_back_freed_memory, peak_resident
from fedmef.errors import SparsityError, UserError
from fedmef.experiment.settings import Experiment, make_experiment
from fedmef.methods import find_method
from fedmef.sparsity.network import Network
from fedmef.wire.broadcast import encode_broadcast

Shape = tuple[int, int, int]


def main() -> None:
    """Answer one question."""
    give_back_freed_memory()
    answer_to = os.dup(1)
    os.dup2(2, 1)  # whatever a user's own model prints is no answer
    question = json.load(sys.stdin)
    try:
        experiment = make_experiment(question["experiment"] | ON_NOISE)
        channels, height, width = question["image_shape"]
        shape, classes = (channels, height, width), question["classes"]
        warm_up()
        answer = measure_rounds(experiment, shape, classes, question["steps"])
        if question["what"] == "step":
            answer |= asdict(measure_tensors(experiment, shape, classes))
    except UserError as error:
        answer = {"mistake": str(error), "of_sparsity": isinstance(error, SparsityError)}
    with os.fdopen(answer_to, "w") as file:
        json.dump(answer, file)


def warm_up() -> None:
    """Train a toy: PyTorch's code comes in as it is used, and is no part of a device's memory."""
    for method in ("fedavg", "fedmef"):
        toy = make_experiment({"method": method, "local_epochs": 1, "batch_size": 32})
        measure_rounds(toy, (3, 8, 8), 10, 1)


def measure_rounds(experiment: Experiment, shape: Shape, classes: int, steps: int) -> dict[str, Any]:
    """Resident memory and seconds of a device's rounds, from the message to the answer."""
    model = noise_model(experiment, shape, classes)
    messages = [encode_broadcast(model, job) for job in round_jobs(experiment)]
    del model
    samples = noise_samples(experiment.batch_size, shape, classes, steps)
    times: list[float] = []

    def open_timed(network: Network) -> Backend:
        return cast(Backend, _Timed(backend_for(experiment, network), times))

    device = Device(0, samples, open_timed, find_method=find_method, most_weights=None, most_values=None)
    peak = 0
    baseline = baseline_resident() - sum(map(len, messages))
    while messages:
        forget_peak()
        device.train(messages.pop(0))
        peak = max(peak, peak_resident())
    ordinary = times[:steps]
    seconds = median([later - earlier for earlier, later in pairwise(ordinary)] or [0.0])
    return {"peak_resident": max(0, peak - baseline), "seconds": seconds}


class _Timed:
    """A backend that notes when each step ends. It is in no cycle: what it held is gone when it goes."""

    def __init__(self, backend: Backend, times: list[float]) -> None:
        self._backend, self._times = backend, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def step(self, *arguments: Any) -> Step:
        """A step of the backend."""
        done = self._backend.step(*arguments)
        self._times.append(time.perf_counter())
        return done


if __name__ == "__main__":
    main()
