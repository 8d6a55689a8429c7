"""What a method is: the half that a device runs and the half that the server runs, in one class.

A round, in order:

    server   job(experiment, round)            what the devices are asked to do
    device   train(local, job)                 local training; returns what else goes up
    server   check(model, update, job)         what an update must be before it may touch the model
    server   aggregate(model, updates, rules)  the devices' average becomes the global model
    server   adjust(model, updates, job, rules)  in adjustment rounds: the masks change

A method overrides what it does differently from FedAvg, and nothing else. It has no state: what a device must
know is in the job, and what the server must know is in the model, the updates and the rules.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedmef.errors import RejectedError
from fedmef.sparsity.adjustment import AdjustmentSchedule
from fedmef.sparsity.arrays import Array
from fedmef.sparsity.model import Model
from fedmef.sparsity.network import Network
from fedmef.sparsity.operations import Layer
from fedmef.wire.job import Job
from fedmef.wire.schemes import most_code_bytes
from fedmef.wire.update import Extras, Update

if TYPE_CHECKING:
    from fedmef.device.training import LocalTraining
    from fedmef.experiment.settings import Experiment

# Arrays of several devices, and the devices' weights, become one array.
Combine = Callable[[Sequence[Array], Sequence[float]], Array]


@dataclass(frozen=True)
class Recipe:
    """How a method prepares a plain dense network.

    Attributes:
        weights: "sparse" at the experiment's sparsity; "dense": all weights stay; "swat": all stay, but a
            forward pass uses the largest only.
        masks: at "random" positions, or those of largest "magnitude".
        norm: BatchNorm stays, NSConv takes its place, or nothing does.
        prune_activations: only a part of the activations is kept for the backward pass.
        plain: none of the above; PyTorch trains the network as it is.
        learning_rate: `η_0` of an experiment that names none: one that works on all data that were tried
            (docs/notes/tuning.md), not the best on any.
    """

    weights: Literal["sparse", "dense", "swat"] = "sparse"
    masks: Literal["random", "magnitude"] = "random"
    norm: Literal["batchnorm", "nsconv", "none"] = "batchnorm"
    prune_activations: bool = False
    plain: bool = False
    learning_rate: float = 0.3

    @property
    def has_sparsity(self) -> bool:
        """Whether an experiment's `sparsity` means anything to it."""
        return self.weights != "dense"


@dataclass(frozen=True)
class Rules:
    """How an experiment wants updates to be merged.

    Attributes:
        combine: the mean of its arrays, or a robust one.
        one_vote_each: every device counts alike, whatever its samples or the size of its numbers.
        grow_init: the first value of a grown weight: 0, or one step down its averaged gradient.
    """

    combine: Combine
    one_vote_each: bool = False
    grow_init: Literal["zero", "step"] = "zero"


@dataclass(frozen=True)
class Adjustment:
    """What an adjustment did, for the log.

    Attributes:
        exchanged: weights that were dropped, and as many grown.
        dropped_magnitude: mean |θ| of the weights that the server dropped; None for none.
        newcomers: share of the dropped weights that had grown at the adjustment before; the server knows.
    """

    exchanged: int
    dropped_magnitude: float | None
    newcomers: float | None = None


class Method:
    """FedAvg (McMahan et al. 2017, https://arxiv.org/abs/1602.05629), and the base of every other method.

    Attributes:
        recipe: the network that it trains.
        fixed_layer_counts: every layer keeps its number of active weights; otherwise only their sum stays.
        devices_adjust: devices change the masks, each its own: there is no model just before an adjustment
            whose accuracy could be told.
        own_merge: it merges updates in its own way, so robust and private aggregation do not apply.
        needs_torch: only the torch backend can train it.
    """

    recipe = Recipe(weights="dense", plain=True)
    fixed_layer_counts = True
    devices_adjust = False
    own_merge = False
    needs_torch = False

    def job(self, experiment: "Experiment", round_number: int) -> Job:
        """What the devices do in this round."""
        return experiment.job(round_number, self.recipe.learning_rate)

    def train(self, local: "LocalTraining", job: Job) -> Extras:
        """The device's half: train the local model, and return what goes up besides its weights."""
        local.fit(job.local_epochs)
        return Extras()

    def withheld(self, network: Network) -> frozenset[str]:
        """Arrays of the model that do not go up as they are: the method sends them in its own way."""
        return frozenset()

    def check(self, model: Model, update: Update, job: Job) -> None:
        """The server's half: raise `RejectedError` for an update that must not touch the model.

        Names, shapes, types and finite numbers of the weights are checked already. A method whose devices
        send something besides the weights overrides this to say what it must be.
        """
        expect_extras(update)

    def extra_bytes(self, model: Model, job: Job) -> int:
        """The server's half: no honest device sends more besides its weights; longer answers are not read.

        By default there is room for a dense array and a mask of every sparse layer, or for nothing where
        `check` expects none.
        """
        if type(self).check is Method.check:
            return 0
        layers = model.network.sparse_layers.values()
        return sum(sparse_bytes(layer, layer.size) for layer in layers)

    def aggregate(self, model: Model, updates: Sequence[Update], rules: Rules) -> None:
        """The server's half: make the devices' average the global model."""
        average_floats(model, updates, rules.combine)

    def adjust(self, model: Model, updates: Sequence[Update], job: Job, rules: Rules) -> Adjustment | None:
        """The server's half in adjustment rounds: change the global model's masks."""
        return None


def mask_bytes(layer: Layer, count: int) -> int:
    """No code of so many positions of a layer takes more."""
    return most_code_bytes(count, layer.filters, layer.filter_size)


def sparse_bytes(layer: Layer, count: int) -> int:
    """The same, with a value for each."""
    return count * np.dtype(layer.dtype).itemsize + mask_bytes(layer, count)


def adjustment_schedule(experiment: "Experiment") -> AdjustmentSchedule:
    """Every `ΔR` rounds, up to `R_stop`."""
    return AdjustmentSchedule(experiment.adjust_every, experiment.last_adjustment)


def adjustable_layers(network: Network) -> dict[str, Layer]:
    """The sparse layers whose masks may change: what is frozen, or used more than once, stays as it is."""
    uses = Counter(operation.module for operation in network.operations if isinstance(operation, Layer))
    return {
        name: layer
        for name, layer in network.sparse_layers.items()
        if f"{name}.values" not in network.frozen and uses[name] == 1
    }


def expect_extras(
    update: Update,
    growth: Collection[str] = (),
    arrays: Collection[str] = (),
    masks: Collection[str] = (),
) -> None:
    """Raise `RejectedError` when an update has other extras than those of these names."""
    extras = update.extras
    for sent, expected in ((extras.growth, growth), (extras.arrays, arrays), (extras.masks, masks)):
        if different := sorted(sent.keys() ^ set(expected)):
            what = "no" if different[0] in expected else "an unexpected"
            raise RejectedError(f"device {update.device} sent {what} {different[0][:80]!r}")


def sample_weights(updates: Sequence[Update]) -> list[float]:
    """`|D_k| / Σ |D_k|` over the devices that answered."""
    total = sum(update.samples for update in updates)
    return [update.samples / total for update in updates]


def average_floats(
    model: Model, updates: Sequence[Update], combine: Combine, without: Collection[str] = ()
) -> None:
    """Set every floating-point array of the model, except those named, to the devices' average."""
    weights = sample_weights(updates)
    for name in model.network.floats:
        if name not in without:
            model.state[name] = combine([update.weights[name] for update in updates], weights)
