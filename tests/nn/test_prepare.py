"""Every recipe makes of a plain network what its method trains."""

import itertools

import pytest
import torch
from torch import nn

from fedmef.errors import SparsityError
from fedmef.experiment.settings import Experiment
from fedmef.methods.base import Recipe
from fedmef.nn import BatchNorm2d, FilterNormalization, ReLU, SparseConv2d, sparse_layers
from fedmef.nn.prepare import prepare
from fedmef.nn.swat import SwatConv2d
from fedmef.sparsity.masks import active_count
from tests.nn import networks
from tests.nn.prepared import own

EXPERIMENT = Experiment(
    sparsity=0.6, activation_sparsity=0.8, cache_dtype="bf16", gamma=1.5, scaling="paper", seed=3
)
ALL = [
    Recipe(weights, masks, norm, prune)  # type: ignore[arg-type]
    for weights, masks, norm, prune in itertools.product(
        ("sparse", "dense", "swat"), ("random", "magnitude"), ("batchnorm", "nsconv", "none"), (False, True)
    )
]
HIDDEN = ("features.1.0", "features.3.0")  # of small_cnn: neither its first layer nor its classifier


def shown(recipe: Recipe) -> str:
    return (
        f"{recipe.weights}-{recipe.masks}-{recipe.norm}-{'pruned' if recipe.prune_activations else 'whole'}"
    )


def small() -> nn.Module:
    return own("small_cnn")


@pytest.mark.parametrize("recipe", ALL, ids=shown)
def test_a_recipe_is_followed(recipe: Recipe) -> None:
    module = prepare(small(), recipe, EXPERIMENT)
    layers = sparse_layers(module)
    assert set(HIDDEN) <= layers.keys()
    for name in HIDDEN:
        layer = layers[name]
        size = layer.geometry.size
        count = active_count(size, 0.6) if recipe.weights == "sparse" else size
        assert layer.active_count == count
        assert type(layer) is (SwatConv2d if recipe.weights == "swat" else SparseConv2d)
        assert layer.cache.sparsity == (0.8 if recipe.prune_activations else 0.0)
        assert layer.cache.dtype == torch.bfloat16
        constants = FilterNormalization(1.5, "paper", layer.geometry.shape[1])
        assert layer.geometry.normalization == (constants if recipe.norm == "nsconv" else None)
        assert layer.gain is None
    kinds = [type(part) for part in module.modules()]
    assert (BatchNorm2d in kinds) == (recipe.norm == "batchnorm")
    assert (ReLU in kinds) == recipe.prune_activations
    assert (nn.ReLU in kinds) != recipe.prune_activations
    assert isinstance(module.get_submodule("classifier"), nn.Linear)
    # The first layer keeps all of its weights, whatever becomes of the others.
    first = module.get_submodule("features.0.0")
    assert sum(value.numel() for value in first.parameters()) == 8 * 3 * 9


@pytest.mark.parametrize("recipe", ALL, ids=shown)
def test_what_a_recipe_makes_can_be_trained(recipe: Recipe) -> None:
    module = prepare(small(), recipe, EXPERIMENT).train()
    images = torch.randn(4, 3, 8, 8)
    nn.functional.cross_entropy(module(images), torch.arange(4)).backward()  # type: ignore[no-untyped-call]
    assert all(value.grad is not None and bool(value.grad.isfinite().all()) for value in module.parameters())


def test_a_plain_recipe_leaves_a_network_as_it_is() -> None:
    network = small()
    expected = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    module = prepare(network, Recipe(weights="dense", plain=True), EXPERIMENT)
    assert module is network
    assert not sparse_layers(module)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in module.state_dict().items())
    assert [name for name, _ in module.named_modules()] == [name for name, _ in small().named_modules()]
    module.train()(torch.randn(1, 3, 2, 2))  # in the end one value a channel, which BatchNorm refuses


@pytest.mark.parametrize("norm", ["batchnorm", "nsconv", "none"])
def test_the_seed_decides_the_masks_and_nothing_else_does(norm: str) -> None:
    def masks(seed: int, pruned: bool) -> list[bytes]:
        recipe = Recipe(norm=norm, prune_activations=pruned)  # type: ignore[arg-type]
        module = prepare(small(), recipe, EXPERIMENT.model_copy(update={"seed": seed}))
        layers = sparse_layers(module)
        return [layers[name].mask.numpy().tobytes() for name in HIDDEN]

    before = torch.get_rng_state()
    reference = sparse_layers(prepare(small(), Recipe(), EXPERIMENT))
    assert masks(3, True) == masks(3, False) == [reference[name].mask.numpy().tobytes() for name in HIDDEN]
    assert masks(4, True) != masks(3, True)
    assert torch.equal(torch.get_rng_state(), before)


def test_masks_of_largest_magnitude_keep_the_largest_weights() -> None:
    weight = small().get_parameter("features.3.0.weight").detach().flatten()
    layer = sparse_layers(prepare(small(), Recipe(masks="magnitude"), EXPERIMENT))["features.3.0"]
    assert layer.values.abs().min() == weight.abs().topk(layer.active_count).values[-1]


@pytest.mark.parametrize("weights", ["sparse", "dense"])
def test_a_gain_and_a_bias_come_with_affine_and_nsconv_only(weights: str) -> None:
    affine = EXPERIMENT.model_copy(update={"affine": True})
    recipe = Recipe(weights=weights, norm="nsconv")  # type: ignore[arg-type]
    for layer in sparse_layers(prepare(small(), recipe, affine)).values():
        assert layer.gain is not None
        assert layer.bias is not None
    for layer in sparse_layers(prepare(small(), Recipe(), affine)).values():
        assert layer.gain is None
        assert layer.bias is None


def test_the_distribution_is_the_experiments() -> None:
    erk = sparse_layers(
        prepare(own("resnet18"), Recipe(), EXPERIMENT.model_copy(update={"distribution": "erk"}))
    )
    assert erk["layer1.0.conv1"].density > 0.4 > erk["layer4.1.conv2"].density


def test_depthwise_layers_are_swat_no_more_than_they_are_sparse() -> None:
    module = prepare(own("mobilenet_v2"), Recipe(weights="swat", prune_activations=True), EXPERIMENT)
    for name, layer in sparse_layers(module).items():
        depthwise = layer.geometry.groups > 1
        assert isinstance(layer, SwatConv2d) == (not depthwise and name != "features.0.0")


def test_without_batchnorm_nothing_is_overwritten() -> None:
    """Its ReLUs work in place, on what a shortcut reads once the BatchNorm before them is gone."""
    torch.manual_seed(0)
    in_place = networks.preact_resnet_in_place()
    functional = networks.preact_resnet()
    functional.load_state_dict(in_place.state_dict())
    images = torch.randn(2, 3, 16, 16)
    results = [prepare(model, Recipe(norm="none"), EXPERIMENT)(images) for model in (in_place, functional)]
    torch.testing.assert_close(*results)


def test_a_sparsity_that_a_layer_does_not_survive_is_named() -> None:
    with pytest.raises(SparsityError, match=r"sparsity = 0\.9999: leaves no weight in 'features\.1\.0'"):
        prepare(small(), Recipe(), EXPERIMENT.model_copy(update={"sparsity": 0.9999}))


def test_the_dense_network_is_used_up() -> None:
    """A device that cannot hold both networks must not be left with both."""
    network = small()
    weight = network.get_parameter("features.3.0.weight")
    prepare(network, Recipe(), EXPERIMENT)
    assert weight.numel() == 0
