"""Networks by name: seeds hold, mistakes are named."""

import pytest
import torch
from torch import fx, nn

from fedmef.errors import UserError
from fedmef.models import MODELS, build_model


def own_network(*, classes: int, channels: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, classes)
    )


def own_network_without_channels(*, classes: int) -> nn.Module:
    return nn.Linear(2, classes)


def not_a_network(*, classes: int, channels: int) -> int:
    return classes * channels


@pytest.mark.parametrize("name", MODELS)
def test_the_same_seed_gives_the_same_weights(name: str) -> None:
    first = build_model(name, classes=3, channels=1, width=8, seed=1).state_dict()
    torch.rand(5)
    second = build_model(name, classes=3, channels=1, width=8, seed=1).state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("name", MODELS)
def test_another_seed_gives_other_weights(name: str) -> None:
    first = nn.utils.parameters_to_vector(
        build_model(name, classes=3, channels=1, width=8, seed=1).parameters()
    )
    second = nn.utils.parameters_to_vector(
        build_model(name, classes=3, channels=1, width=8, seed=2).parameters()
    )
    assert not torch.equal(first, second)


def test_building_leaves_the_global_generator_as_it_was() -> None:
    before = torch.get_rng_state()
    build_model("small_cnn", classes=3, channels=1, seed=0)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("name", "stem"), [(name, stem) for name in MODELS for stem in MODELS[name]])
def test_every_network_can_be_traced(name: str, stem: str) -> None:
    network = build_model(name, classes=3, channels=1, width=8, stem=stem, seed=0).eval()
    images = torch.ones(1, 1, 32, 32)
    torch.testing.assert_close(fx.symbolic_trace(network)(images), network(images))


@pytest.mark.parametrize("name", MODELS)
def test_every_activation_is_a_module_used_once(name: str) -> None:
    graph = fx.symbolic_trace(build_model(name, classes=3, channels=1, width=8, seed=0))
    activations = [key for key, module in graph.named_modules() if isinstance(module, nn.ReLU | nn.ReLU6)]
    calls = [
        str(node.target)
        for node in graph.graph.nodes
        if node.op == "call_module" and isinstance(graph.get_submodule(str(node.target)), nn.ReLU | nn.ReLU6)
    ]
    assert activations
    assert sorted(calls) == sorted(activations)
    assert not any("relu" in str(node.target) for node in graph.graph.nodes if node.op == "call_function")


def test_no_stem_means_the_cifar_stem() -> None:
    network = build_model("resnet18", classes=3, channels=1, width=4, stem=None, seed=0)
    assert network.get_parameter("conv1.weight").shape == (4, 1, 3, 3)


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown model 'resnet81': did you mean 'resnet18'"):
        build_model("resnet81", classes=3, channels=1, seed=0)


def test_an_unknown_stem_names_those_of_the_network() -> None:
    with pytest.raises(UserError, match="stem = 'imagenet': small_cnn has only cifar; leave it out"):
        build_model("small_cnn", classes=3, channels=1, stem="imagenet", seed=0)


@pytest.mark.parametrize(("classes", "channels", "width"), [(0, 1, 8), (3, 0, 8), (3, 1, 0)])
def test_a_network_of_nothing_is_a_mistake(classes: int, channels: int, width: int) -> None:
    with pytest.raises(UserError, match="is 0: a network needs at least 1"):
        build_model("small_cnn", classes=classes, channels=channels, width=width, seed=0)


def test_a_users_own_network_is_built_from_its_path_with_the_same_seed() -> None:
    first = build_model(f"{__name__}:own_network", classes=3, channels=1, seed=1)
    second = build_model(f"{__name__}:own_network", classes=3, channels=1, seed=1)
    assert first(torch.zeros(2, 1, 8, 8)).shape == (2, 3)
    assert torch.equal(first.get_parameter("0.weight"), second.get_parameter("0.weight"))


def test_width_is_refused_for_a_users_own_network() -> None:
    with pytest.raises(UserError, match="leave them out"):
        build_model(f"{__name__}:own_network", classes=3, channels=1, width=8, seed=0)


def test_an_own_function_that_takes_no_channels_is_named() -> None:
    with pytest.raises(UserError, match="own_network_without_channels' cannot be called with"):
        build_model(f"{__name__}:own_network_without_channels", classes=3, channels=1, seed=0)


def test_an_own_function_must_return_a_module() -> None:
    with pytest.raises(UserError, match="returned int: it must return a torch"):
        build_model(f"{__name__}:not_a_network", classes=3, channels=1, seed=0)
