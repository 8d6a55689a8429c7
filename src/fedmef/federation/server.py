"""The server: holds the global model, absorbs updates, lets the method adjust the masks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedmef.errors import FedmefError
from fedmef.experiment.settings import Experiment
from fedmef.federation.aggregation import clipped, combine_by
from fedmef.federation.ledger import Ledger
from fedmef.federation.privacy import absorb_privately
from fedmef.federation.server_optimizer import ServerOptimizer
from fedmef.federation.update_checks import Rejection, UpdateChecks, expected_weights
from fedmef.methods import find_method
from fedmef.methods.base import Adjustment, Rules
from fedmef.sparsity.masks import count_bits
from fedmef.sparsity.model import Masks, Model
from fedmef.wire.broadcast import encode_broadcast
from fedmef.wire.container import checksum_of
from fedmef.wire.job import Job
from fedmef.wire.update import Update


class Server:
    """The only place where a run's model lives between rounds."""

    def __init__(self, experiment: Experiment, model: Model, checks: UpdateChecks | None = None) -> None:
        self.experiment = experiment
        self.method = find_method(experiment.method)()
        self.model = model
        self.checks = checks or UpdateChecks.of(experiment)
        self.active = model.active_counts()
        self.ledger = Ledger(model.masks())
        self.optimizer = ServerOptimizer(experiment, model)
        self.sent: dict[int, str] = {}  # the checksum of the last message to each device of this round
        self.rules = Rules(
            combine_by(experiment.aggregation, experiment.trim),
            one_vote_each=experiment.aggregation != "mean",
            grow_init=experiment.grow_init,
        )

    def job(self, round_number: int) -> Job:
        """What the devices do in a round."""
        return self.method.job(self.experiment, round_number)

    def broadcast(self, job: Job, devices: Sequence[int]) -> dict[int, bytes]:
        """The message that goes to each device of a round, with what it does not hold."""
        messages: dict[int, bytes] = {}
        for group in self.ledger.groups(devices):
            known = group.masks if job.remember_masks else None
            message = encode_broadcast(self.model, job, known=known, knows_network=group.knows_network)
            messages |= dict.fromkeys(group.devices, message)
            self.sent |= dict.fromkeys(group.devices, checksum_of(message))
        return {device: messages[device] for device in devices}

    def check(self, answers: Mapping[int, bytes], job: Job) -> tuple[list[Update], list[Rejection]]:
        """The devices' updates that can be used, in the order of devices, and those that cannot."""
        checked = [
            self.checks.accept(
                answers[device], device, self.method, self.model, job, self.sent.get(device, "")
            )
            for device in sorted(answers)
        ]
        rejections = [rejection for rejection in checked if isinstance(rejection, Rejection)]
        updates = [update for update in checked if isinstance(update, Update)]
        rejections += self.checks.compare(updates, self.method, self.model, job)
        rejected = {rejection.device for rejection in rejections}
        updates = [update for update in updates if update.device not in rejected]
        for update in updates:
            self.ledger.note(update.device)
        return updates, rejections

    def missed(self, device: int) -> None:
        """A device was lost or answered nonsense: nobody knows what it holds."""
        self.ledger.forget(device)

    def absorb(self, updates: Sequence[Update], job: Job) -> tuple[list[Update], float]:
        """Make the average of checked updates the global model; what was averaged, and the mean loss."""
        experiment, sent = self.experiment, expected_weights(self.method, self.model)
        absorbed, before = sorted(updates, key=lambda update: update.device), dict(self.model.state)
        if experiment.noise_multiplier:
            absorb_privately(self.model, absorbed, sent, experiment, job.round)
        else:
            if experiment.clip_norm is not None:
                absorbed = [clipped(update, sent, experiment.clip_norm) for update in absorbed]
            self.method.aggregate(self.model, absorbed, self.rules)
        self.optimizer.step(self.model, before)
        samples = sum(update.samples for update in absorbed)
        loss = sum(update.samples * update.loss for update in absorbed) / samples if samples else math.nan
        return absorbed, loss

    def adjust(self, updates: Sequence[Update], job: Job) -> Adjustment | None:
        """Let the method change the masks; no weights are added, and none changes layer unless it may."""
        before, adjustment = self.model.masks(), None
        if job.adjusts and (adjustment := self.method.adjust(self.model, updates, job, self.rules)):
            after = self.model.masks()
            dropped = {name: mask & ~after[name] for name, mask in before.items()}
            adjustment = replace(adjustment, newcomers=share(self.ledger.newcomers(), dropped))
        self.optimizer.follow(self.model, before)
        self.ledger.advance(self.model.masks())
        now = self.model.active_counts()
        if not self.method.fixed_layer_counts and sum(now.values()) == sum(self.active.values()):
            self.active = now
        if now != self.active:
            changed = next(name for name in self.active if now.get(name) != self.active[name])
            raise FedmefError(
                f"round {job.round + 1}: {changed} has {now.get(changed)} active weights instead of "
                f"{self.active[changed]}; an adjustment must grow as many as it drops"
            )
        return adjustment


def share(some: Masks, of: Masks) -> float | None:
    """How many of the ones of all masks are ones of others too; None when nobody knows, or there are none."""
    total = sum(count_bits(mask) for mask in of.values())
    if not some or not total:
        return None
    return sum(count_bits(mask & some[name]) for name, mask in of.items()) / total
