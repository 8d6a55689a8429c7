"""The server: holds the global model, absorbs updates, lets the method adjust the masks."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedmef.errors import FedmefError
from fedmef.exchange import decode_update, encode_broadcast
from fedmef.mask_ledger import MaskLedger
from fedmef.methods import Adjustment, Method, Plan, Update
from fedmef.nn import sparse_layers


class Server:
    """The only place where a run's model lives between rounds."""

    def __init__(self, method: Method, model: nn.Module) -> None:
        self.method = method
        self.model = model
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

    def absorb(self, answers: Sequence[bytes], plan: Plan) -> float:
        """Make the devices' average the global model; returns their mean training loss."""
        self._updates = sorted(
            (decode_update(answer, self.model) for answer in answers), key=lambda update: update.device
        )
        for update in self._updates:
            self._check(update, plan)
            self.ledger.note(update.device)
        self.method.aggregate(self.model, self._updates)
        return sum(update.samples * update.loss for update in self._updates) / sum(
            update.samples for update in self._updates
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
                f"round {plan.round}: {changed} has {now.get(changed)} active weights instead of "
                f"{self.active[changed]}; an adjustment must grow as many as it drops"
            )
        return adjustment

    def _check(self, update: Update, plan: Plan) -> None:
        """A wrong update would silently ruin the global model: stop instead."""
        who = f"round {plan.round}: device {update.device}"
        if update.samples < 1:
            raise FedmefError(f"{who} says that it has {update.samples} samples")
        withheld = self.method.withheld(self.model)
        for name, tensor in self.model.state_dict().items():
            if not tensor.is_floating_point() or name in withheld:
                continue
            sent = update.weights.get(name)
            if sent is None or sent.shape != tensor.shape or sent.dtype != tensor.dtype:
                raise FedmefError(f"{who} sent no {name} of shape {list(tensor.shape)}")
            if not torch.isfinite(sent).all():
                raise FedmefError(
                    f"{who} sent weights that are not finite ({name}): its training diverged; "
                    f"lower learning_rate (now {plan.learning_rate:g})"
                )


def packed_masks(model: nn.Module) -> dict[str, Tensor]:
    """The masks of the sparse layers."""
    return {name: layer.mask for name, layer in sparse_layers(model).items()}


def active_weights(model: nn.Module) -> dict[str, int]:
    """Active weights per sparse layer, counted in the mask itself."""
    return {name: layer.active_positions().numel() for name, layer in sparse_layers(model).items()}
