"""The server: holds the global model, absorbs updates, lets the method adjust the masks."""

import math
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from fedmef.errors import FedmefError
from fedmef.federation.aggregation import clipped
from fedmef.federation.mask_ledger import MaskLedger
from fedmef.federation.privacy import absorb_privately
from fedmef.federation.update_checks import Rejection, UpdateChecks, expected_weights
from fedmef.methods import Adjustment, Method, Plan, Update
from fedmef.nn import sparse_layers
from fedmef.wire.exchange import encode_broadcast


class Server:
    """The only place where a run's model lives between rounds."""

    def __init__(self, method: Method, model: nn.Module, checks: UpdateChecks | None = None) -> None:
        self.method = method
        self.model = model
        self.checks = checks or UpdateChecks()
        self.active = active_weights(model)
        self.ledger = MaskLedger(packed_masks(model))
        self._updates: list[Update] = []

    def broadcast(self, plan: Plan, devices: Sequence[int]) -> dict[int, bytes]:
        """The message that goes to each device of a round, with the masks that it does not hold."""
        experiment = self.method.experiment
        messages: dict[int, bytes] = {}
        for known, members in self.ledger.groups(devices):
            message = encode_broadcast(
                self.model,
                plan,
                scheme=experiment.wire_scheme,
                wire_dtype=experiment.wire_dtype,
                known=known if experiment.remember_masks else None,
            )
            messages |= dict.fromkeys(members, message)
        return {device: messages[device] for device in devices}

    def check(self, answers: Mapping[int, bytes], plan: Plan) -> tuple[list[Update], list[Rejection]]:
        """The devices' updates that can be used, in the order of devices, and those that cannot."""
        checked = [
            self.checks.accept(answers[device], device, self.method, self.model, plan)
            for device in sorted(answers)
        ]
        updates = [update for update in checked if isinstance(update, Update)]
        for update in updates:
            self.ledger.note(update.device)
        return updates, [rejection for rejection in checked if isinstance(rejection, Rejection)]

    def missed(self, device: int) -> None:
        """A device was lost or answered nonsense: nobody knows which masks it holds."""
        self.ledger.forget(device)

    def absorb(self, updates: Sequence[Update], plan: Plan) -> float:
        """Make the average of checked updates the global model; returns their mean training loss."""
        experiment, sent = self.method.experiment, expected_weights(self.method, self.model)
        self._updates = sorted(updates, key=lambda update: update.device)
        if experiment.noise_multiplier:
            absorb_privately(self.model, self._updates, sent, experiment, plan.round)
        else:
            if experiment.clip_norm is not None:
                self._updates = [clipped(update, sent, experiment.clip_norm) for update in self._updates]
            self.method.aggregate(self.model, self._updates)
        samples = sum(update.samples for update in updates)
        return (
            sum(update.samples * update.loss for update in self._updates) / samples if samples else math.nan
        )

    def adjust(self, plan: Plan) -> Adjustment | None:
        """Let the method change the masks; no weights are added, and none changes layer unless it may."""
        adjustment = self.method.adjust(self.model, self._updates, plan) if plan.adjusts else None
        self._updates = []
        self.ledger.advance(packed_masks(self.model))
        now = active_weights(self.model)
        if not self.method.fixed_layer_counts and sum(now.values()) == sum(self.active.values()):
            self.active = now
        if now != self.active:
            changed = next(name for name in self.active if now.get(name) != self.active[name])
            raise FedmefError(
                f"round {plan.round + 1}: {changed} has {now.get(changed)} active weights instead of "
                f"{self.active[changed]}; an adjustment must grow as many as it drops"
            )
        return adjustment


def packed_masks(model: nn.Module) -> dict[str, Tensor]:
    """The masks of the sparse layers."""
    return {name: layer.mask for name, layer in sparse_layers(model).items()}


def active_weights(model: nn.Module) -> dict[str, int]:
    """Active weights per sparse layer, counted in the mask itself."""
    return {name: layer.active_positions().numel() for name, layer in sparse_layers(model).items()}
