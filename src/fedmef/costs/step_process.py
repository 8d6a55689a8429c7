"""The process that `fedmef.costs.step` starts: a question as JSON on stdin, the answer as JSON on stdout."""

import json
import os
import sys
import time
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from fedmef.costs.measure import bytes_kept_for_backward
from fedmef.costs.noise_rounds import ON_NOISE, noise_fleet, peak_of_rounds, round_plans
from fedmef.device.resident import baseline_resident, forget_peak, give_back_freed_memory, peak_resident
from fedmef.errors import UserError
from fedmef.experiment.settings import Experiment, make_experiment
from fedmef.federation.engines import Fleet, prepared_model
from fedmef.federation.server import Server
from fedmef.methods import Plan, build_method
from fedmef.models import layout_for


def main() -> None:
    """Answer one question."""
    give_back_freed_memory()
    answer_to = os.dup(1)
    os.dup2(2, 1)  # whatever a user's own model prints is no answer
    torch.set_num_threads(1)
    question = json.load(sys.stdin)
    try:
        experiment = make_experiment(question["experiment"] | ON_NOISE)
        shape = tuple(question["image_shape"])
        warm_up()
        answer = resident_part(experiment, shape, question["classes"], question["steps"])
        if question["what"] == "step":
            del answer["device_memory"]
            answer |= tensor_part(experiment, shape, question["classes"])
    except UserError as error:
        answer = {"mistake": str(error)}
    with os.fdopen(answer_to, "w") as file:
        json.dump(answer, file)


def warm_up() -> None:
    """PyTorch imports a part of itself at the first optimiser, and its code comes in as it is used."""
    for method in ("fedavg", "fedmef"):
        toy = make_experiment({"method": method, "local_epochs": 1, "batch_size": 32})
        _train(noise_fleet(toy, (3, 8, 8), 10, 1), round_plans(toy))


def resident_part(experiment: Experiment, shape: tuple[int, ...], classes: int, steps: int) -> dict[str, Any]:
    """What the whole process takes, and what the optimiser sees."""
    baseline = baseline_resident()
    watched = _WatchedSteps()
    fleet = noise_fleet(experiment, shape, classes, steps)
    building = peak_resident()
    training = _train(fleet, round_plans(experiment))
    return {
        "device_memory": max(building, training) - baseline,
        "peak_resident": training - baseline,
        "parameters": _bytes([*fleet.model.parameters(), *fleet.model.buffers()]),
        "gradients": watched.gradients,
        "optimizer": watched.optimizer,
        "seconds": watched.median_seconds(steps),
    }


def tensor_part(experiment: Experiment, shape: tuple[int, ...], classes: int) -> dict[str, Any]:
    """What PyTorch's allocator counts."""
    peak = peak_of_rounds(experiment, shape, classes)
    model = prepared_model(experiment, build_method(experiment), classes, shape[0]).train()
    images = torch.randn(experiment.batch_size, *shape, generator=torch.Generator().manual_seed(0))
    images = images.contiguous(memory_format=layout_for(model))
    return {"peak": peak, "cache": bytes_kept_for_backward(model, images)}


def _train(fleet: Fleet, plans: dict[int, Plan]) -> int:
    """Rounds as an engine runs them; returns the most resident memory in any of them."""
    peak = 0
    for device, plan in plans.items():
        messages = Server(fleet.method, fleet.model).broadcast(plan, [device])
        forget_peak()
        fleet.train(device, messages.pop(device))
        peak = max(peak, peak_resident())
    return peak


class _WatchedSteps:
    """What every optimiser's step shows from now on."""

    def __init__(self) -> None:
        self.gradients = self.optimizer = 0
        self._times: list[float] = []
        register_optimizer_step_pre_hook(self._before)
        register_optimizer_step_post_hook(self._after)

    def median_seconds(self, steps: int) -> float:
        """From one step to the next, of the first so many: those of the ordinary round."""
        ordinary = self._times[:steps]
        return median(later - earlier for earlier, later in pairwise(ordinary))

    def _before(self, optimizer: Optimizer, *_: object) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.gradients = _bytes([parameter.grad for parameter in parameters if parameter.grad is not None])

    def _after(self, optimizer: Optimizer, *_: object) -> None:
        states = [value for state in optimizer.state.values() for value in state.values()]
        self.optimizer = _bytes([value for value in states if isinstance(value, Tensor)])
        self._times.append(time.perf_counter())


def _bytes(tensors: list[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


if __name__ == "__main__":
    main()
