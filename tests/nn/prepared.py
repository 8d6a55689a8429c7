"""Networks as methods prepare them, in a state that training might have left them in."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedmef.experiment.settings import Experiment
from fedmef.methods.base import Recipe
from fedmef.models import MODELS, build_model
from fedmef.nn.export import export_network, module_state
from fedmef.nn.prepare import prepare
from fedmef.sparsity.model import Model
from fedmef.sparsity.network import Input
from tests.nn.networks import DESCRIBED

RECIPES: dict[str, Recipe] = {
    "plain": Recipe(weights="dense", plain=True),
    "sparse": Recipe(),
    "largest": Recipe(masks="magnitude"),
    "pruned caches": Recipe(prune_activations=True),
    "nsconv": Recipe(norm="nsconv", prune_activations=True),
    "dense nsconv": Recipe(weights="dense", norm="nsconv", prune_activations=True),
    "swat": Recipe(weights="swat", prune_activations=True),
    "no norm": Recipe(norm="none"),
}

EXPERIMENT = Experiment(sparsity=0.6, activation_sparsity=0.8, affine=True, gamma=0.9, seed=3)

BUILT_IN = {
    f"{name}-{stem}": (lambda name=name, stem=stem: own(name, stem))
    for name in MODELS
    for stem in MODELS[name]
}
BUILDERS: dict[str, Callable[[], nn.Module]] = {**BUILT_IN, **DESCRIBED}
DEEP = ("resnet34", "resnet50", "mobilenet_v2")
METHODS_OWN = ("sparse", "nsconv")  # what the sparse methods with BatchNorm have, and what FedMef has


def with_every_recipe(names: Iterable[str]) -> list[Any]:
    """Parameters name and recipe; other recipes of a deep network are slow: together they take minutes."""
    return [
        pytest.param(
            name,
            recipe,
            marks=[pytest.mark.slow] if name.startswith(DEEP) and recipe not in METHODS_OWN else [],
            id=f"{name}-{recipe}",
        )
        for name in names
        for recipe in RECIPES
    ]


def own(name: str, stem: str = "cifar") -> nn.Module:
    return build_model(name, classes=10, channels=3, width=8, stem=stem, seed=0)


def prepared(name: str, recipe: str, experiment: Experiment = EXPERIMENT) -> nn.Module:
    """A network after a recipe, with parameters and statistics that are not those of a new one."""
    torch.manual_seed(0)
    return worn(prepare(BUILDERS[name](), RECIPES[recipe], experiment))


@torch.no_grad()
def worn(module: nn.Module) -> nn.Module:
    module.train()(torch.randn(8, 3, size_for(module), size_for(module)) * 2 + 0.5)
    for name, parameter in module.named_parameters():
        if not name.endswith(("values", "mask")) and parameter.ndim == 1:
            parameter.add_(0.2 * torch.randn(parameter.shape))
    return module.eval()


def size_for(module: nn.Module) -> int:
    """Height and width of images: small where that is possible."""
    return 32 if type(module).__module__.startswith("fedmef.models") else 16


def input_for(module: nn.Module) -> Input:
    return Input((3, size_for(module), size_for(module)), (0.4, 0.5, 0.6), (0.2, 0.3, 0.25))


def exported(module: nn.Module) -> Model:
    network = export_network(module, input_for(module))
    return Model(network, module_state(module, network))


def images_for(module: nn.Module, count: int = 3, seed: int = 0) -> NDArray[np.uint8]:
    size = size_for(module)
    return np.random.default_rng(seed).integers(0, 256, (count, 3, size, size), dtype=np.uint8)


def labels_for(count: int = 3, seed: int = 0) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, 10, count)


def normalized(module: nn.Module, images: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(input_for(module).normalize(images))
