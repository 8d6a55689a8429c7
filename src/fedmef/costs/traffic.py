"""Bytes of the real messages between the server and one device, measured in a round of the method's own."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedmef.data import Dataset, Split
from fedmef.device.device import Device
from fedmef.experiment.settings import Experiment
from fedmef.federation.engines import prepared_model
from fedmef.federation.server import Server
from fedmef.methods import Plan, build_method

FEWEST_IMAGES = 32  # fewer leave pruned positions of small maps without a gradient, and fewer scores to send


@dataclass(frozen=True)
class MeasuredExchange:
    """Lengths of messages, down to a device and up from it.

    Of a device that holds no masks of earlier rounds, which is the most that a round takes.

    Attributes:
        down, up: in a round that does not adjust.
        down_adjusting, up_adjusting: in one that does; None when the method, or its schedule, has none.
    """

    down: int
    up: int
    down_adjusting: int | None
    up_adjusting: int | None

    @property
    def ordinary(self) -> int:
        """Down and up, in a round that does not adjust."""
        return self.down + self.up

    @property
    def adjusting(self) -> int:
        """Down and up at the most: in a round that adjusts, if there is one."""
        if self.down_adjusting is None or self.up_adjusting is None:
            return self.ordinary
        return self.down_adjusting + self.up_adjusting


def measure_exchange(experiment: Experiment, image_shape: Sequence[int], classes: int) -> MeasuredExchange:
    """Send a device of the experiment its model, let it take a step on noise, and take its answer.

    One batch of the experiment's size, or of 32 images if that is more. How long a device trains makes no
    difference to what its messages weigh.
    """
    images = max(experiment.batch_size, FEWEST_IMAGES)
    short = experiment.model_copy(
        update={
            **{"device": "cpu", "local_epochs": 1, "batch_size": images, "augment": False},
            "learning_rate": 1e-3,  # a step on noise must not diverge
        }
    )
    method = build_method(short)
    dataset = _noise(images, image_shape, classes)
    model = prepared_model(short, method, classes, image_shape[0])
    server = Server(method, model)
    device = Device(0, method, model, dataset, torch.arange(images))

    def exchanged(plan: Plan) -> tuple[int, int]:
        message = server.broadcast(plan, [0])[0]
        return len(message), len(device.train(message))

    ordinary = exchanged(method.plan(0))
    plan = method.plan(short.adjust_every)
    adjusting = exchanged(plan) if plan.adjusts else (None, None)
    return MeasuredExchange(*ordinary, *adjusting)


def _noise(count: int, image_shape: Sequence[int], classes: int) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, *image_shape), generator=generator, dtype=torch.uint8)
    split = Split(images, torch.arange(count) % classes)
    return Dataset("noise", split, split, classes)
