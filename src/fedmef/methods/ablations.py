"""FedMef with one of its parts taken away."""

from typing import TYPE_CHECKING

from fedmef.methods.base import Recipe
from fedmef.methods.fedmef import FedMef
from fedmef.methods.fedtiny import FedTiny
from fedmef.wire.job import Job
from fedmef.wire.update import Extras

if TYPE_CHECKING:
    from fedmef.device.training import LocalTraining


class FedMefNoBaE(FedMef):
    """Without budget-aware extrusion: adjustment rounds train as FedTiny's do."""

    def train(self, local: "LocalTraining", job: Job) -> Extras:
        """FedTiny's training."""
        return FedTiny.train(self, local, job)


class FedMefNoSAP(FedMef):
    """Without scaled activation pruning, as DropIT has it: pruned caches, but BatchNorm, not NSConv."""

    recipe = Recipe(norm="batchnorm", prune_activations=True)


class FedMefRestart(FedMef):
    """Extrusion's learning rate without its penalty (`λ = 0`): what restarting the rate alone does."""

    def strength(self, job: Job) -> float:
        """No penalty."""
        return 0.0
