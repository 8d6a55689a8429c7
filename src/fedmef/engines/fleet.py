"""The devices that one process stands for: one model as scratch space, each device's share of the data."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedmef.data import Dataset, dirichlet_partition, iid_partition
from fedmef.device import LocalTraining
from fedmef.exchange import decode_broadcast, encode_update
from fedmef.experiment import Experiment
from fedmef.methods import Method, build_method
from fedmef.models import build_model
from fedmef.randomness import derive_seed


@dataclass(frozen=True, eq=False)
class Fleet:
    """Everything that is needed to train any device of an experiment."""

    experiment: Experiment
    method: Method
    model: nn.Module
    dataset: Dataset
    shares: list[Tensor]  # training samples of each device

    @classmethod
    def build(cls, experiment: Experiment, dataset: Dataset) -> "Fleet":
        """The same fleet in every process."""
        method = build_method(experiment)
        return cls(
            experiment,
            method,
            prepared_model(experiment, method, dataset),
            dataset,
            partition(experiment, dataset),
        )

    def train(self, device: int, message: bytes) -> bytes:
        """One device's round: bytes in, bytes out. What the model held before does not matter."""
        state, plan = decode_broadcast(message)
        self.model.load_state_dict(state)
        share = self.shares[device]
        local = LocalTraining(device, self.model, self.dataset, share, self.experiment, plan)
        accelerators = [self.experiment.device] if self.experiment.device.startswith("cuda") else []
        with torch.random.fork_rng(accelerators):
            # For layers that draw from PyTorch's own generators, such as Dropout.
            torch.manual_seed(derive_seed(self.experiment.seed, "device", plan.round, device))
            extras = self.method.train(local, plan)
        return encode_update(device, len(share), local.mean_loss(), self.model, extras)


def prepared_model(experiment: Experiment, method: Method, dataset: Dataset) -> nn.Module:
    """The experiment's initial model, as its method trains it."""
    network = build_model(
        experiment.model,
        classes=dataset.classes,
        channels=dataset.shape[0],
        width=experiment.width,
        stem=experiment.stem,
        seed=experiment.seed,
    )
    return method.prepare(network).to(experiment.device)


def partition(experiment: Experiment, dataset: Dataset) -> list[Tensor]:
    """Which training samples each device has."""
    labels = dataset.train.labels
    if experiment.partition == "iid":
        return iid_partition(labels, experiment.devices, experiment.seed)
    return dirichlet_partition(labels, experiment.devices, experiment.alpha, experiment.seed)
