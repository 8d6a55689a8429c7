"""One device: it gets the global model as bytes, trains on its own data, and answers with bytes."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedmef.attack import attackers, scale_update
from fedmef.data import Dataset
from fedmef.exchange import decode_broadcast, encode_update
from fedmef.faults import Faults, befall, corrupt
from fedmef.local_training import LocalTraining
from fedmef.methods import Method
from fedmef.randomness import derive_seed
from fedmef.wire import MaskMemory


@dataclass(frozen=True, eq=False)
class Device:
    """A device of an experiment. Devices may share a model: it is scratch space, the message decides it."""

    number: int
    method: Method
    model: nn.Module
    dataset: Dataset
    indices: Tensor  # which training samples are this device's
    memory: MaskMemory | None = None  # None: it remembers no masks

    def train(self, message: bytes) -> bytes:
        """A whole round."""
        state, plan = decode_broadcast(message, self.model, self.memory)
        self.method.load(self.model, state)
        experiment = self.method.experiment
        fault = Faults.parse(experiment.faults).of(experiment.seed, plan.round, plan.attempt, self.number)
        befall(fault)
        local = LocalTraining(self.number, self.model, self.dataset, self.indices, experiment, plan)
        accelerators = [experiment.device] if experiment.device.startswith("cuda") else []
        with torch.random.fork_rng(accelerators):
            # For layers that draw from PyTorch's own generators, such as Dropout.
            torch.manual_seed(derive_seed(experiment.seed, "device", plan.round, self.number))
            extras = self.method.train(local, plan)
        if self.number in attackers(experiment.attackers, experiment.devices, experiment.seed):
            scale_update(self.model, state, experiment.attack_scale)
        withheld = self.method.withheld(self.model)
        answer = encode_update(
            self.number,
            len(self.indices),
            local.mean_loss(),
            self.model,
            extras,
            withheld,
            scheme=experiment.wire_scheme,
            wire_dtype=experiment.wire_dtype,
        )
        return corrupt(answer, experiment.seed, plan.round, self.number) if fault == "corrupt" else answer
