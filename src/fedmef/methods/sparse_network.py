"""The sparse network that an experiment asks for, in the variants that the methods differ by."""

from torch import nn

from fedmef.experiment.settings import CACHE_DTYPES, Experiment
from fedmef.nn import sparse_layers, sparsify
from fedmef.nn.sparsify import Initialization


def sparse_network(
    network: nn.Module,
    experiment: Experiment,
    *,
    normalize: bool = False,
    prune_activations: bool = False,
    sparsity: float | None = None,
    initialization: Initialization = "random",
) -> nn.Module:
    """`sparsify` with the experiment's settings; `sparsity` replaces the experiment's own if given.

    The network is used up. The same seed gives every method the same masks and the same initial weights.
    ReLU's bit instead of a whole tensor is a part of SAP: methods that do not prune activations keep them as
    their papers do.
    """
    network = sparsify(
        network,
        sparsity=experiment.sparsity if sparsity is None else sparsity,
        normalize=normalize,
        activation_sparsity=experiment.activation_sparsity if prune_activations else 0.0,
        cache_dtype=CACHE_DTYPES[experiment.cache_dtype],
        seed=experiment.seed,
        distribution=experiment.distribution,
        initialization=initialization,
        gamma=experiment.gamma,
        scaling=experiment.scaling,
        affine=experiment.affine and normalize,
        compact_activations=prune_activations,
        consume=True,
    )
    for layer in sparse_layers(network).values():
        layer.center_filters()  # so that the smallest weights are those that matter least, from the start
    return network
