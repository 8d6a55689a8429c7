"""What a method is: the half that a device runs and the half that the server runs, in one class.

A round, in order:

    server   plan(round)                       what the devices are asked to do
    device   train(local, plan)                local training; returns what goes up beside the weights
    server   check(model, update, plan)        what an update must be before it may touch the model
    server   aggregate(model, updates)         the weighted average becomes the global model
    server   adjust(model, updates, plan)      in adjustment rounds: the masks change

A method overrides what it does differently from FedAvg, and nothing else.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedmef.errors import FedmefError
from fedmef.experiment.settings import Experiment
from fedmef.federation.aggregation import Combine, combine_by, weighted_mean
from fedmef.nn import GrowthScores, guard_batchnorm, sparse_layers
from fedmef.sparsity import AdjustmentSchedule

if TYPE_CHECKING:
    from fedmef.device.training import LocalTraining


@dataclass(frozen=True)
class Plan:
    """What the server asks of the devices in a round.

    Attributes:
        round: counted from 0.
        learning_rate: `η_r`.
        adjustment_rate: `ζ_r`, or 0 when masks stay as they are.
        attempt: how often the round was tried before, with other devices.
    """

    round: int
    learning_rate: float
    adjustment_rate: float = 0.0
    attempt: int = 0

    @property
    def adjusts(self) -> bool:
        """Whether the masks change after this round."""
        return self.adjustment_rate > 0


@dataclass(frozen=True)
class Extras:
    """What a method sends up beside the trained weights.

    Attributes:
        growth: growth scores of sparse layers.
        tensors: anything else, sent as it is.
        masks: packed masks of sparse layers, where they are not those that the server has sent.
    """

    growth: dict[str, GrowthScores] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    masks: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Update:
    """A device's answer, decoded."""

    device: int
    samples: int
    loss: float
    weights: dict[str, Tensor]
    extras: Extras


class RejectedError(FedmefError):
    """An update that must not touch the model; it is left out, and the others are used."""


@dataclass(frozen=True)
class Adjustment:
    """What an adjustment did, for the log."""

    exchanged: int
    dropped_magnitude: float | None  # mean |θ| of the weights that the server dropped; None for none


class Method:
    """FedAvg (McMahan et al. 2017), and the base of every other method.

    Attributes:
        dense: the sparsity means nothing to it.
        normalized: NSConv takes BatchNorm's place; it bears a higher learning rate.
        prunes_activations: `activation_sparsity` and `cache_dtype` mean something to it.
        fixed_layer_counts: every layer keeps its number of active weights; otherwise only their sum stays.
        devices_adjust: devices change the masks, each its own: there is no model just before an adjustment
            whose accuracy could be told.
    """

    dense = False
    normalized = False
    prunes_activations = False
    fixed_layer_counts = True
    devices_adjust = False

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.schedule = AdjustmentSchedule(experiment.adjust_every, experiment.last_adjustment)
        self.combine = combine_by(experiment.aggregation, experiment.trim)

    def prepare(self, network: nn.Module) -> nn.Module:
        """The network as this method trains it, from a plain dense one; server and devices both call it."""
        return guard_batchnorm(network)

    def plan(self, round_number: int) -> Plan:
        """What the devices do in this round."""
        return Plan(round_number, self.experiment.learning_rate_at(round_number))

    def train(self, local: "LocalTraining", plan: Plan) -> Extras:
        """The device's half: train `local.model`, and return what goes up beside its weights."""
        local.fit(self.experiment.local_epochs)
        return Extras()

    def withheld(self, model: nn.Module) -> frozenset[str]:
        """Tensors of the model that do not go up as they are: the method sends them in its own way."""
        return frozenset()

    def load(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        """Make a model of this method have a state, whose layers may have other counts if the method's do."""
        if not self.fixed_layer_counts:
            for name, layer in sparse_layers(model).items():
                count = state[f"{name}.values"].numel()
                if count != layer.active_count:
                    layer.values = nn.Parameter(layer.values.new_zeros(count))
        model.load_state_dict(state)

    def check(self, model: nn.Module, update: Update, plan: Plan) -> None:
        """The server's half: raise `RejectedError` for an update that must not touch the model.

        Names, shapes, types and finite numbers of the weights are checked already. A method whose devices
        send something beside the weights overrides this to say what it must be.
        """
        expect_extras(update)

    def aggregate(self, model: nn.Module, updates: Sequence[Update]) -> None:
        """The server's half: make the devices' average the global model."""
        average_floats(model, updates, sample_weights(updates), combine=self.combine)

    def adjust(self, model: nn.Module, updates: Sequence[Update], plan: Plan) -> Adjustment | None:
        """The server's half in adjustment rounds: change the global model's masks."""
        return None


def expect_extras(
    update: Update,
    growth: Collection[str] = (),
    tensors: Collection[str] = (),
    masks: Collection[str] = (),
) -> None:
    """Raise `RejectedError` when an update has other extras than those of these names."""
    extras = update.extras
    for sent, expected in ((extras.growth, growth), (extras.tensors, tensors), (extras.masks, masks)):
        if different := sorted(sent.keys() ^ set(expected)):
            what = "no" if different[0] in expected else "an unexpected"
            raise RejectedError(f"device {update.device} sent {what} {different[0][:80]!r}")


def sample_weights(updates: Sequence[Update]) -> list[float]:
    """`|D_k| / Σ |D_k|` over the devices that answered."""
    total = sum(update.samples for update in updates)
    return [update.samples / total for update in updates]


@torch.no_grad()
def average_floats(
    model: nn.Module,
    updates: Sequence[Update],
    weights: Sequence[float],
    without: Collection[str] = (),
    combine: Combine = weighted_mean,
) -> None:
    """Set every floating-point tensor of the model, but those named, to the devices' weighted mean."""
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and name not in without:
            tensor.copy_(combine([update.weights[name] for update in updates], weights))
