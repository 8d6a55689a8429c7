"""A densified network has PyTorch's own layers only, and computes the same."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import fedmef
from fedmef.nn.densify import densify
from fedmef.nn.module import NetworkModule, load_state
from tests.nn.prepared import BUILDERS, RECIPES, exported, prepared, size_for

deprecated = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, within it


def images(module: nn.Module) -> torch.Tensor:
    return torch.randn(3, 3, size_for(module), size_for(module), generator=torch.Generator().manual_seed(0))


def assert_same(
    dense: Callable[[torch.Tensor], torch.Tensor], module: nn.Module, batch: torch.Tensor
) -> None:
    wanted = module(batch)
    assert (dense(batch) - wanted).abs().max() <= 1e-5 * wanted.abs().max().clamp(min=1)


def foreign_modules(module: nn.Module) -> set[str]:
    return {
        f"{type(part).__module__}.{type(part).__name__}"
        for part in module.modules()
        if type(part).__module__.startswith("fedmef.nn")
    }


@pytest.mark.parametrize("name", BUILDERS)
def test_every_network_computes_the_same_with_plain_layers(name: str) -> None:
    module = prepared(name, "nsconv")
    before = copy.deepcopy(module.state_dict())
    dense = densify(module)
    assert foreign_modules(dense) <= {"fedmef.nn.densify.NormalizedFeatures"}
    assert_same(dense, module, images(module))
    for key, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[key])


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_method_s_network_computes_the_same(recipe: str) -> None:
    module = prepared("resnet18-cifar", recipe)
    assert_same(densify(module), module, images(module))


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_network_from_data_computes_the_same(recipe: str) -> None:
    model = exported(prepared("small_cnn-cifar", recipe))
    module = NetworkModule(model.network).eval()
    load_state(module, model.network, model.state)
    dense = densify(module)
    assert isinstance(dense, NetworkModule)
    assert dense.network.sparse_layers == {}
    assert not dense.training
    assert_same(dense, module, torch.randn(3, *model.network.input.shape))


def test_a_single_layer_can_be_densified() -> None:
    layer = fedmef.SparseConv2d(4, 6, 3, padding=1, normalize=True)
    dense = densify(layer)
    assert type(dense) is nn.Conv2d
    assert_same(dense, layer, torch.randn(2, 4, 5, 5))


@pytest.fixture(params=["module", "data"])
def dense(request: pytest.FixtureRequest) -> nn.Module:
    module = prepared("small_cnn-cifar", "nsconv")
    if request.param == "module":
        return densify(module)
    model = exported(module)
    executed = NetworkModule(model.network).eval()
    load_state(executed, model.network, model.state)
    return densify(executed)


@deprecated
def test_it_can_be_copied_exported_and_scripted(dense: nn.Module) -> None:
    batch = torch.randn(2, 3, 32, 32)
    assert_same(copy.deepcopy(dense), dense, batch)
    assert_same(torch.export.export(dense, (batch,)).module(), dense, batch)
    assert_same(torch.jit.trace(dense, batch), dense, batch)  # type: ignore[no-untyped-call]


@pytest.mark.slow
@deprecated
def test_it_can_be_compiled(dense: nn.Module) -> None:
    batch = torch.randn(2, 3, 32, 32)
    assert_same(torch.compile(dense), dense, batch)


def test_it_can_be_trained_on(dense: nn.Module) -> None:
    dense.train()(torch.randn(2, 3, 32, 32)).sum().backward()
    assert all(parameter.grad is not None for parameter in dense.parameters())
