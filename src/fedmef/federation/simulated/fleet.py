"""The devices that one process stands for: one model as scratch space, each device's share of the data."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedmef.data import Dataset, dirichlet_partition, iid_partition
from fedmef.device.device import Device
from fedmef.experiment.settings import Experiment
from fedmef.methods import Method, build_method, prepare
from fedmef.models import build_model
from fedmef.wire import MaskMemory


@dataclass(frozen=True, eq=False)
class Fleet:
    """Everything that is needed to train any device of an experiment."""

    experiment: Experiment
    method: Method
    model: nn.Module
    dataset: Dataset
    shares: list[Tensor]  # training samples of each device; none when devices have their data elsewhere
    memory: MaskMemory | None = None  # the masks that its devices hold: equal masks need one copy

    @classmethod
    def build(cls, experiment: Experiment, dataset: Dataset, memory: MaskMemory | None = None) -> "Fleet":
        """The same fleet in every process."""
        return replace(
            cls.elsewhere(experiment, dataset), shares=partition(experiment, dataset), memory=memory
        )

    @classmethod
    def elsewhere(cls, experiment: Experiment, dataset: Dataset) -> "Fleet":
        """What a server needs whose devices have their own data, and masks; `dataset` is for testing."""
        method = build_method(experiment)
        model = prepared_model(experiment, method, dataset.classes, dataset.shape[0])
        return cls(experiment, method, model, dataset, [])

    def train(self, device: int, message: bytes) -> bytes:
        """One device's round: bytes in, bytes out."""
        share = self.shares[device]
        trained = Device(device, self.method, self.model, self.dataset, share, self.memory)
        plan = trained.receive(message)
        del message  # a device with little memory does not hold it while it trains
        return trained.answer(plan)


def warm_up() -> None:
    """What PyTorch imports at its first step takes seconds: no device's deadline shall pay for it."""
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def prepared_model(experiment: Experiment, method: Method, classes: int, channels: int) -> nn.Module:
    """The experiment's initial model, as its method trains it."""
    network = build_model(
        experiment.model,
        classes=classes,
        channels=channels,
        width=experiment.width,
        stem=experiment.stem,
        seed=experiment.seed,
    )
    return prepare(method, network).to(experiment.device)


def partition(experiment: Experiment, dataset: Dataset) -> list[Tensor]:
    """Which training samples each device has."""
    labels = dataset.train.labels
    if experiment.partition == "iid":
        return iid_partition(labels, experiment.devices, experiment.seed)
    return dirichlet_partition(labels, experiment.devices, experiment.alpha, experiment.seed)
