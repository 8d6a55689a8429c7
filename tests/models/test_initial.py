"""The model that an experiment begins with."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedmef.errors import UserError
from fedmef.experiment.settings import Experiment
from fedmef.methods import METHODS, find_method
from fedmef.models import MODELS, build_model
from fedmef.models.initial import initial_model, plain_network, prepared_module
from fedmef.nn.export import module_state
from fedmef.sparsity.model import Model, check_state
from fedmef.sparsity.network import Network
from fedmef.sparsity.operations import Convolution

STATISTICS = ((0.2, 0.3, 0.4), (0.5, 0.6, 0.7))
GREY = ((0.25,), (0.75,))


def small(**settings: object) -> Experiment:
    return Experiment.model_validate({"width": 8, "sparsity": 0.6, **settings})


def begun(experiment: Experiment) -> Model:
    return initial_model(experiment, (1, 8, 8), 10, GREY)


def bits(model: Model) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in model.state.items()}


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_model(method: str) -> None:
    first = begun(small(method=method, seed=1))
    torch.rand(5)
    np.random.default_rng().random()
    second = begun(small(method=method, seed=1))
    assert first.network == second.network
    assert first.network.digest == second.network.digest
    assert bits(first) == bits(second)
    check_state(first.network, first.state)


@pytest.mark.parametrize("method", METHODS)
def test_another_seed_gives_another_model_of_the_same_network(method: str) -> None:
    first, other = begun(small(method=method, seed=1)), begun(small(method=method, seed=2))
    assert first.network == other.network
    different = {name for name in first.state if bits(first)[name] != bits(other)[name]}
    assert {"features.3.0.weight", "features.3.0.values"} & different
    masks = {name for name in first.state if name.endswith(".mask")}
    sparse = find_method(method).recipe.weights == "sparse"
    assert bool(masks & different) == sparse


def with_group_norm(classes: int, channels: int) -> nn.Module:
    layers = nn.Conv2d(channels, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 8, 3)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, classes))


def test_a_network_with_another_norm_can_begin_too() -> None:
    network = begun(small(model=f"{__name__}:with_group_norm", width=None)).network
    assert set(network.sparse_layers) == {"0", "3"}
    assert network.opaque is not None
    assert network.opaque.description == "GroupNorm '1'"


class Asserting(nn.Module):
    """Has checks that no symbol passes."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(channels, 8, 3), nn.BatchNorm2d(8)
        self.second, self.third = nn.Conv2d(8, 16, 3), nn.Conv2d(16, 16, 3)
        self.fc, self.other = nn.Linear(16, classes), nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[1:] == (1, 8, 8)
        x = torch.relu(self.norm(self.first(x)))
        x = torch.relu(self.third(torch.relu(self.second(x)))).mean((2, 3))
        logits: Tensor = self.fc(x) + self.other(x)
        return logits


def asserting(*, classes: int, channels: int) -> nn.Module:
    return Asserting(classes, channels)


def test_a_network_that_symbols_cannot_follow_begins_by_running() -> None:
    experiment = own("asserting", method="fedmef")
    model = begun(experiment)
    assert set(model.network.sparse_layers) == {"first", "second", "third"}
    assert model.network.opaque is None
    check_state(model.network, model.state)
    state = module_state(prepared_module(experiment, 1, 10, (1, 8, 8)), model.network)
    assert state["second.mask"].tobytes() == bits(model)["second.mask"]


def test_a_federation_has_the_knobs_of_sparsify() -> None:
    names = {"skip": "third", "keep_dense": ["second"], "first_layers": "first", "last_layers": ["fc"]}
    network = begun(own("asserting", method="fedmef", **names)).network
    layers = network.sparse_layers
    assert "third" not in layers
    counts = {name: layer.size for name, layer in layers.items()}
    state = begun(own("asserting", method="fedmef", **names)).state
    assert state["second.values"].size == counts["second"]
    assert state["first.values"].size < counts["first"]
    assert layers["other"].normalization is not None  # only `fc` counts as the classifier
    with pytest.raises(UserError, match=r"skip: no module of Asserting matches 'fourth'"):
        begun(own("asserting", method="fedmef", skip="fourth"))


def test_pytorchs_generator_stays_as_it_was() -> None:
    before = torch.get_rng_state()
    begun(small())
    assert torch.equal(torch.get_rng_state(), before)


def test_shape_and_statistics_are_in_the_network() -> None:
    network = initial_model(small(), (3, 16, 12), 7, STATISTICS).network
    assert network.input.shape == (3, 16, 12)
    assert (network.input.mean, network.input.std) == STATISTICS
    assert network.classes == 7
    assert Network.from_json(network.to_json()) == network


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("method", ["fedavg", "fedmef", "fedtiny", "zerofl"])
def test_every_network_of_ours_is_described_completely(name: str, method: str) -> None:
    model = initial_model(small(model=name, method=method), (3, 32, 32), 10, STATISTICS)
    assert model.network.opaque is None
    check_state(model.network, model.state)


def test_settings_reach_the_network() -> None:
    settings = {"stem": "strided", "model": "resnet18", "gamma": 0.7, "scaling": "paper", "affine": True}
    experiment = small(**settings, activation_sparsity=0.8, cache_dtype="bf16")
    network = initial_model(experiment, (3, 16, 16), 10, STATISTICS).network
    layer = network.layers["layer1.0.conv1"]
    assert layer.normalization is not None
    assert (layer.normalization.gamma, layer.normalization.scaling) == (0.7, "paper")
    assert (layer.cache.sparsity, layer.cache.dtype) == (0.8, "bf16")
    assert layer.gain
    first = network.layers["conv1"]
    assert isinstance(first, Convolution)
    assert first.stride == (2, 2)


@pytest.mark.parametrize("method", ["fedmef", "fedavg_sap"])
def test_filters_that_are_normalised_begin_with_a_mean_of_zero(method: str) -> None:
    """So that the smallest weights are those that matter least, from the start."""
    model = begun(small(method=method))
    checked = 0
    for name, layer in model.network.sparse_layers.items():
        assert layer.normalization is not None
        filters = model.positions(name) // layer.filter_size
        lengths, sums = np.bincount(filters), np.bincount(filters, model.values(name))
        assert np.abs(sums[lengths >= 2]).max() < 1e-5
        checked += int((lengths >= 2).sum())
    assert checked > 20


def test_weights_of_other_methods_are_the_networks_own() -> None:
    model = begun(small(method="fedtiny"))
    plain = build_model("small_cnn", classes=10, channels=1, width=8, seed=0)
    weight = plain.get_parameter("features.3.0.weight").detach().flatten().numpy()
    np.testing.assert_array_equal(model.values("features.3.0"), weight[model.positions("features.3.0")])


def test_a_plain_network_is_that_of_fedavg_but_for_its_statistics() -> None:
    experiment = small(method="fedmef", model="resnet18")
    plain = plain_network(experiment, (3, 16, 16), 10)
    assert plain.sparse_layers == {}
    assert plain.input.mean == plain.input.std == (0.5, 0.5, 0.5)
    fedavg = initial_model(small(method="fedavg", model="resnet18"), (3, 16, 16), 10, STATISTICS).network
    assert plain.operations == fedavg.operations


def test_the_prepared_module_is_that_of_the_model() -> None:
    experiment = small(method="fedtiny", seed=4)
    model = begun(experiment)
    state = module_state(prepared_module(experiment, 1, 10), model.network)
    assert {name: array.tobytes() for name, array in state.items()} == bits(model)


def seven(*, classes: int, channels: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64 * channels, 7))


def not_logits(*, classes: int, channels: int) -> nn.Module:
    return nn.Conv2d(channels, classes, 3)


def for_large_images(*, classes: int, channels: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, 4, 9), nn.Flatten(), nn.Linear(4, classes))


def half(*, classes: int, channels: int) -> nn.Module:
    return seven(classes=classes, channels=channels).half()


class WithDropout(nn.Module):
    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 8, 3)
        self.second = nn.Conv2d(8, 8, 3)
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.drop(self.second(self.first(x)).mean((2, 3))))
        return logits


def with_dropout(*, classes: int, channels: int) -> nn.Module:
    return WithDropout(classes, channels)


def own(name: str, **settings: object) -> Experiment:
    return Experiment.model_validate({"model": f"{__name__}:{name}", "sparsity": 0.6, **settings})


def test_a_network_that_answers_other_classes_is_named() -> None:
    with pytest.raises(UserError, match=r"seven' answers 7 numbers to an image: .*each of the 10 classes"):
        begun(own("seven", method="fedavg"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("not_logits", "model '.*not_logits': the network answers"),
        (
            "for_large_images",
            r"model '.*for_large_images': the network cannot take images of shape \[1, 8, 8\]",
        ),
        ("half", r"model '.*half': 1\.weight is of type torch\.float16"),
    ],
)
def test_a_network_that_does_not_fit_is_named(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        begun(own(name, method="fedavg"))
    with pytest.raises(UserError, match=message):
        plain_network(own(name), (1, 8, 8), 10)


@pytest.mark.parametrize("method", ["fedavg", "fedmef"])
def test_a_network_with_something_unknown_can_begin_too(method: str) -> None:
    model = begun(own("with_dropout", method=method))
    assert model.network.opaque is not None
    assert model.network.opaque.description.startswith("Dropout 'drop', test_initial.py line ")
    check_state(model.network, model.state)
    assert ("second" in model.network.sparse_layers) == (method == "fedmef")
