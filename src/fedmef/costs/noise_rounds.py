"""A device's rounds on noise, as the experiment's method trains it, and the most bytes of tensors in them."""

import torch

from fedmef.costs.measure import peak_of_tensors
from fedmef.data import Dataset, Split
from fedmef.device.training import LocalTraining
from fedmef.experiment.settings import Experiment
from fedmef.federation.engines import Fleet, prepared_model
from fedmef.methods import Plan, build_method

ORDINARY, ADJUSTING = 0, 1  # the two devices: one has an ordinary round, the other an adjustment

# Over an experiment's own settings. A tiny learning rate: few steps on noise shall not end in NaN.
ON_NOISE = {"device": "cpu", "local_epochs": 1, "learning_rate": 1e-4}


def noise_fleet(experiment: Experiment, shape: tuple[int, ...], classes: int, steps: int) -> Fleet:
    """Two devices that hold one batch of noise, which each trains on again and again."""
    generator = torch.Generator().manual_seed(0)
    size = experiment.batch_size
    images = torch.randint(256, (size, *shape), dtype=torch.uint8, generator=generator)
    noise = Split(images, torch.arange(size) % classes)
    mean = torch.full((shape[0],), 0.5)
    method = build_method(experiment)
    return Fleet(
        experiment,
        method,
        prepared_model(experiment, method, classes, shape[0]),
        Dataset("noise", noise, noise, classes, known_statistics=(mean, mean)),
        [torch.arange(size).repeat(steps)] * 2,
    )


def round_plans(experiment: Experiment) -> dict[int, Plan]:
    """An ordinary round, and the one that exchanges most if there is any."""
    every = [build_method(experiment).plan(number) for number in range(experiment.rounds)]
    most = max(every, key=lambda plan: plan.adjustment_rate)
    return {ORDINARY: every[0]} | ({ADJUSTING: most} if most.adjusts else {})


def peak_of_rounds(experiment: Experiment, shape: tuple[int, ...], classes: int) -> int:
    """Most bytes of tensors alive at once in these rounds; the experiment is one with `ON_NOISE`."""

    def train(fleet: Fleet) -> None:
        for device, plan in round_plans(experiment).items():
            indices = fleet.shares[device]
            local = LocalTraining(device, fleet.model, fleet.dataset, indices, experiment, plan)
            fleet.method.train(local, plan)

    return peak_of_tensors(lambda: noise_fleet(experiment, shape, classes, 2), train)
