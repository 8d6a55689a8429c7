"""A plain dense network as a method trains it: its recipe, with an experiment's settings."""

from typing import TYPE_CHECKING

from torch import nn

from fedmef.methods.base import Recipe
from fedmef.nn.batchnorm import guard_batchnorm
from fedmef.nn.module import CACHES
from fedmef.nn.sparsify import dense_by_default, not_in_place, sparsify
from fedmef.nn.swat import use_swat

if TYPE_CHECKING:
    from fedmef.experiment.settings import Experiment


def prepare(network: nn.Module, recipe: Recipe, experiment: "Experiment") -> nn.Module:
    """Apply a recipe. The network is used up; the same seed gives every method the same masks.

    ReLU's bit instead of a whole tensor is a part of SAP: methods that do not prune activations keep them as
    their papers do.
    """
    if recipe.plain:
        return guard_batchnorm(network)
    if recipe.norm == "none":
        _remove_batchnorm(network)
    left_dense = dense_by_default(network)
    normalize, pruned = recipe.norm == "nsconv", recipe.prune_activations
    prepared = sparsify(
        network,
        sparsity=experiment.sparsity if recipe.weights == "sparse" else 0.0,
        normalize=normalize,
        activation_sparsity=experiment.activation_sparsity if pruned else 0.0,
        cache_dtype=CACHES[experiment.cache_dtype],
        seed=experiment.seed,
        distribution=experiment.distribution,
        initialization=recipe.masks,
        gamma=experiment.gamma,
        scaling=experiment.scaling,
        affine=experiment.affine and normalize,
        compact_activations=pruned,
        consume=True,
    )
    if recipe.weights == "swat":
        use_swat(prepared, experiment.sparsity, left_dense)
    return prepared


def _remove_batchnorm(network: nn.Module) -> None:
    not_in_place(network.modules())
    for module in list(network.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, nn.Identity())
