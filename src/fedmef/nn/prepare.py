"""A plain dense network as a method trains it: its recipe, with an experiment's settings."""

from typing import TYPE_CHECKING

from torch import Tensor, nn

from fedmef.methods.base import Recipe
from fedmef.nn.batchnorm import guard_batchnorm
from fedmef.nn.conversion import conversion_of
from fedmef.nn.module import CACHES
from fedmef.nn.own_layer import NAME
from fedmef.nn.sparsify import remove_batchnorm, sparsify
from fedmef.nn.swat import use_swat

if TYPE_CHECKING:
    from fedmef.experiment.settings import Experiment


def prepare(
    network: nn.Module, recipe: Recipe, experiment: "Experiment", example: Tensor | None = None
) -> nn.Module:
    """Apply a recipe. The network is used up; the same seed gives every method the same masks.

    ReLU's bit instead of a whole tensor is a part of SAP: methods that do not prune activations keep them as
    their papers do. `example` is a batch of images, for a network that symbols cannot follow.
    """
    if recipe.plain:
        return guard_batchnorm(network)
    if recipe.norm == "none":
        remove_batchnorm(network, experiment.skip, example)
    normalize, pruned = recipe.norm == "nsconv", recipe.prune_activations
    prepared = sparsify(
        network,
        sparsity=experiment.sparsity if recipe.weights == "sparse" else 0.0,
        normalize=normalize,
        activation_sparsity=experiment.activation_sparsity if pruned else 0.0,
        cache_dtype=CACHES[experiment.cache_dtype],
        seed=experiment.seed,
        keep_dense=experiment.keep_dense,
        skip=experiment.skip,
        first=experiment.first_layers,
        last=experiment.last_layers,
        distribution=experiment.distribution,
        initialization=recipe.masks,
        gamma=experiment.gamma,
        scaling=experiment.scaling,
        affine=experiment.affine and normalize,
        compact_activations=pruned,
        consume=True,
        example=example,
        quiet=True,
    )
    if recipe.weights == "swat":
        conversion = conversion_of(prepared)
        assert conversion is not None
        own = [f"{name}.{NAME}" for name in conversion.dense]
        use_swat(prepared, experiment.sparsity, [*conversion.dense, *own])
    return prepared
