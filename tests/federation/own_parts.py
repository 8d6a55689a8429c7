"""Parts of a user's own, named in experiments as `tests.federation.own_parts:NAME`."""

import math
import os
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmef.methods import Extras, Job, Method
from fedmef.methods.fedmef import FedMef
from fedmef.sparsity.arrays import Floats, Integers

if TYPE_CHECKING:
    from fedmef.device.training import LocalTraining


class Lazy(Method):
    """In five lines."""

    def train(self, local: "LocalTraining", job: Job) -> Extras:
        local.fit(1 if job.round else 2)
        return Extras()


class LazyFedMef(FedMef):
    """Of another method, in five lines."""

    def strength(self, job: Job) -> float:
        return 0.1


class Broken(Method):
    """Some devices always raise; `asked` notes who was asked."""

    devices: ClassVar[tuple[int, ...]] = ()
    asked: ClassVar[list[int]] = []

    def train(self, local: "LocalTraining", job: Job) -> Extras:
        self.asked.append(local.device)
        if local.device in self.devices:
            raise RuntimeError("on purpose")
        return super().train(local, job)


class Slow(Method):
    """Every device takes its time."""

    def train(self, local: "LocalTraining", job: Job) -> Extras:
        time.sleep(0.2)
        return super().train(local, job)


class Moody(Method):
    """Device 0 raises, device 1 hangs, device 2 dies by itself, in round 0."""

    def train(self, local: "LocalTraining", job: Job) -> Extras:
        moods: list[Callable[[], object]] = [
            lambda: 1 / 0,
            lambda: time.sleep(600),
            lambda: os.kill(os.getpid(), signal.SIGKILL),
        ]
        if job.round == 0 and local.device < len(moods):
            moods[local.device]()
        return super().train(local, job)


def own_network(classes: int, channels: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes)
    )


def opaque_network(classes: int, channels: int) -> nn.Module:
    """SiLU and dropout cannot be described as data; dropout draws random numbers as well."""
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.SiLU(),
        nn.Conv2d(8, 8, 3, padding=1, stride=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, classes),
    )


class Branching(nn.Module):
    """forward() has control flow: nothing of it can be described, it is opaque as a whole."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        self.body = own_network(classes, channels)

    def forward(self, images: Tensor) -> Tensor:
        if float(images.mean()) > 1e6:
            raise ValueError("images that are not normalised")
        logits: Tensor = self.body(images)
        return logits


class Failing(nn.Sequential):
    """Cannot be trained."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        if self.training:
            raise RuntimeError("out of coffee")
        output: Tensor = super().forward(input)  # type: ignore[no-untyped-call]
        return output


def failing_network(classes: int, channels: int) -> nn.Module:
    return Failing(*own_network(classes, channels).children())


class Doubling(nn.Sequential):
    """While it trains, its logits are twice what they are otherwise: no such network can be data."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        output: Tensor = super().forward(input)  # type: ignore[no-untyped-call]
        return output + output if self.training else output


def doubling_network(classes: int, channels: int) -> nn.Module:
    return Doubling(*own_network(classes, channels).children())


def few_answers(classes: int, channels: int) -> nn.Module:
    return own_network(classes - 1, channels)


def small_input(classes: int, channels: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels + 1, 4, 3), nn.Flatten(), nn.Linear(4, classes))


def smooth_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, label_smoothing=0.2)


def same_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels)


def sharp_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Wants the logits of class 0 as large as can be."""
    return -300 * logits[:, 0].mean()


def noisy_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Draws random numbers."""
    return F.cross_entropy(logits + 0.5 * torch.randn_like(logits), labels)


criterion = nn.CrossEntropyLoss(label_smoothing=0.2)
no_function = 3


def loss_of_each(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="none")


def infinite_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels) / 0


def number_loss(logits: Tensor, labels: Tensor) -> float:
    return F.cross_entropy(logits, labels).item()


def detached_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels).detach()


def unrelated_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.Parameter(torch.ones(())).square()


def raising_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, weight=torch.ones(3))


def top5(logits: Floats, labels: Integers) -> float:
    best = np.argsort(-logits, axis=1)[:, :5]
    return float((best == labels[:, None]).any(1).mean())


def accuracy(logits: Floats, labels: Integers) -> np.floating[Any]:
    """NumPy's numbers are numbers."""
    mean: np.floating[Any] = (logits.argmax(1) == labels).mean()
    return mean


def nan_metric(logits: Floats, labels: Integers) -> float:
    return math.nan


def many_metrics(logits: Floats, labels: Integers) -> Floats:
    means: Floats = logits.mean(1)
    return means


def no_metric(logits: Floats, labels: Integers) -> None:
    return None


def text_metric(logits: Floats, labels: Integers) -> str:
    return "0.5"


def raising_metric(logits: Floats, labels: Integers) -> float:
    raise KeyError("on purpose")


def changing_metric(logits: Floats, labels: Integers) -> float:
    logits -= logits.max()
    return float(logits[0, 0])
