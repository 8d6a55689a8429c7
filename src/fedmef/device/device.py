"""One device: it gets the global model as bytes, trains on its own data, and answers with bytes."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedmef.data import Dataset
from fedmef.device.training import LocalTraining
from fedmef.experiment.randomness import derive_seed
from fedmef.federation.simulated.attack import attackers, scale_update
from fedmef.federation.simulated.faults import Faults, befall, corrupt
from fedmef.methods import Method, Plan
from fedmef.wire import MaskMemory
from fedmef.wire.exchange import decode_broadcast, encode_update


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
        return self.answer(self.receive(message))

    def receive(self, message: bytes) -> Plan:
        """Make the model what the server sent; returns what is to be done with it."""
        state, plan = decode_broadcast(message, self.model, self.memory)
        self.method.load(self.model, state)
        return plan

    def answer(self, plan: Plan) -> bytes:
        """Train the model that was received, and say what became of it."""
        experiment = self.method.experiment
        fault = Faults.parse(experiment.faults).of(experiment.seed, plan.round, plan.attempt, self.number)
        befall(fault)
        attacks = self.number in attackers(experiment.attackers, experiment.devices, experiment.seed)
        received = copy.deepcopy(self.model.state_dict()) if attacks else None
        local = LocalTraining(self.number, self.model, self.dataset, self.indices, experiment, plan)
        accelerators = [experiment.device] if experiment.device.startswith("cuda") else []
        with torch.random.fork_rng(accelerators):
            # For layers that draw from PyTorch's own generators, such as Dropout.
            torch.manual_seed(derive_seed(experiment.seed, "device", plan.round, self.number))
            extras = self.method.train(local, plan)
        if received is not None:
            scale_update(self.model, received, experiment.attack_scale)
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
