"""The classifier's input brought to one size, image by image, and its logits to match."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedmef.nn import SparseConv2d, sparsify
from fedmef.nn.features import FeatureNorm, feature_norm, layer_norm, normalize_features, scale
from fedmef.nn.module import NetworkModule, load_state
from fedmef.sparsity.operations import LayerNorm, Scale
from tests.nn import networks
from tests.nn.prepared import exported, own, size_for
from tests.nn.saved import saved_tensors, storages

# The network's last layer, and the number of its inputs.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], str, int]] = {
    "vgg": (networks.vgg, "20", 32),
    "preact_resnet": (networks.preact_resnet, "linear", 16),
    "mobilenet": (networks.OtherMobileNet, "classifier", 32),  # a convolution
    "own resnet18": (lambda: own("resnet18"), "fc", 64),
    "own mobilenet_v2": (lambda: own("mobilenet_v2"), "classifier.1", 1280),
    "own small_cnn": (lambda: own("small_cnn"), "classifier", 32),
}
every_network = pytest.mark.parametrize("name", NETWORKS)


def normalized(name: str, **options: Any) -> tuple[nn.Module, nn.Module]:
    """A network as FedMef makes it, and its classifier."""
    torch.manual_seed(0)
    build, classifier, _ = NETWORKS[name]
    model = sparsify(build(), sparsity=0.5, normalize=True, **options).eval()
    return model, model.get_submodule(classifier)


def expected_scale(name: str) -> float:
    build, classifier, features = NETWORKS[name]
    shape = build().get_parameter(f"{classifier}.weight").shape
    return math.sqrt(0.4 * (8 if len(shape) == 4 else 1) * shape[0] / features)


def images_for(model: nn.Module, count: int = 5) -> Tensor:
    return torch.randn(count, 3, size_for(model), size_for(model))


def given_to(classifier: nn.Module) -> list[Tensor]:
    """What a classifier will be given, as a hook that comes after ours sees it."""
    seen: list[Tensor] = []
    classifier.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    return seen


def gradient(features: Tensor, upstream: Tensor) -> tuple[Tensor, Tensor]:
    """Output and gradient."""
    leaf = features.clone().requires_grad_()
    output = layer_norm(leaf)
    (grad,) = torch.autograd.grad(output, leaf, upstream)
    return output.detach(), grad


# The function.


def test_two_images_by_hand() -> None:
    features = torch.tensor([[1.0, 3.0], [0.0, -8.0]])
    assert layer_norm(features).tolist() == [pytest.approx([-1, 1]), pytest.approx([1, -1])]


def test_a_gradient_by_hand() -> None:
    _, grad = gradient(torch.tensor([[0.0, 0.0, 3.0, 3.0]]), torch.tensor([[0.0, 1.0, 0.0, 0.0]]))
    # x̂ = (−1, −1, 1, 1), σ = 1.5: (g − mean(g) − x̂ · mean(g x̂)) / σ, with means of 1/4 and −1/4
    assert grad.tolist() == [pytest.approx([-1 / 3, 1 / 3, 0, 0])]


@pytest.mark.parametrize("shape", [(3, 7), (2, 4, 1, 1), (2, 3, 2, 2)])
def test_gradients_are_those_of_the_function(shape: tuple[int, ...]) -> None:
    features = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(layer_norm, (features,))
    torch.autograd.gradcheck(lambda features: scale(features, 0.3), (features,))


@given(
    images=st.integers(1, 4),
    shape=st.sampled_from([(5,), (64,), (3, 2, 2)]),
    exponent=st.integers(-5, 5),
    offset=st.floats(-3, 3),
    seed=st.integers(0, 999),
)
@settings(deadline=None)
def test_it_is_pytorchs_layer_norm(
    images: int, shape: tuple[int, ...], exponent: int, offset: float, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    features = (torch.randn(images, *shape, generator=random, dtype=torch.float64) + offset) * 10.0**exponent
    upstream = torch.randn(images, *shape, generator=random, dtype=torch.float64)
    output, grad = gradient(features, upstream)
    plain_leaf = features.clone().requires_grad_()
    plain = F.layer_norm(plain_leaf, shape, eps=0.0)
    (plain_grad,) = torch.autograd.grad(plain, plain_leaf, upstream)
    torch.testing.assert_close(output, plain.detach(), rtol=0, atol=1e-3)
    torch.testing.assert_close(grad, plain_grad, rtol=1e-2, atol=1e-3 * float(grad.abs().max()))


@given(exponent=st.integers(-25, 30), seed=st.integers(0, 999))
@settings(deadline=None)
def test_features_of_any_size_come_out_alike(exponent: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    features, upstream = torch.randn(3, 32, generator=random), torch.randn(3, 32, generator=random)
    factor = 10.0**exponent
    output, grad = gradient(features * factor, upstream)
    same_output, same_grad = gradient(features, upstream)
    torch.testing.assert_close(output, same_output, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(grad * factor, same_grad, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(output.square().mean(1), torch.ones(3))
    torch.testing.assert_close(output.mean(1), torch.zeros(3), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "features",
    [
        torch.randn(3, 8) * 1e-20,  # whose squares are 0 in float32
        torch.randn(3, 8) * 1e-40,
        torch.randn(3, 8) * 1e37,
        torch.zeros(3, 8),
        torch.full((3, 8), 0.1),
        torch.full((3, 8), -1e-20),
        torch.full((3, 1), 5.0),
        torch.tensor([[0.0, 0.0, 1e-20], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]),
    ],
    ids=["small", "tiny", "huge", "zero", "constant", "small constant", "single", "mixed"],
)
def test_extreme_features_give_finite_values_and_gradients(features: Tensor) -> None:
    output, grad = gradient(features, torch.randn(features.shape))
    assert output.isfinite().all()
    assert grad.isfinite().all()
    assert output.square().mean(1).max() <= 1.001


def test_equal_features_become_zeros() -> None:
    assert not layer_norm(torch.full((2, 7), 0.3)).any()
    assert not layer_norm(torch.zeros(2, 7)).any()


@pytest.mark.parametrize("shape", [(6, 9), (6, 4, 2, 3)])
def test_no_image_sees_another_one(shape: tuple[int, ...]) -> None:
    features = torch.randn(shape) * torch.logspace(-9, 9, 6).view(-1, *[1] * (len(shape) - 1))
    upstream = torch.randn(shape)
    outputs, gradients = gradient(features, upstream)
    for number in range(6):
        alone = slice(number, number + 1)
        output, grad = gradient(features[alone], upstream[alone])
        torch.testing.assert_close(output, outputs[alone])
        torch.testing.assert_close(grad, gradients[alone])


def test_only_its_output_and_one_number_an_image_are_kept() -> None:
    features = torch.randn(5, 3, 2, 2, requires_grad=True)
    with saved_tensors() as seen:
        output = layer_norm(features)
    assert [tuple(tensor.shape) for tensor in seen] == [(5, 3, 2, 2), (5, 1, 1, 1)]
    assert seen[0].data_ptr() == output.data_ptr()


def test_scaling_keeps_nothing() -> None:
    with saved_tensors() as seen:
        scaled = scale(torch.ones(5, 3, requires_grad=True), 0.5)
    assert not seen
    assert (scaled == 0.5).all()


# A classifier.


def test_logits_are_those_of_normalised_features_times_their_factor() -> None:
    classifier = nn.Linear(64, 10)
    features = torch.randn(5, 64) * 1e-4
    expected = classifier(F.layer_norm(features * 1e4, (64,), eps=0.0)) * 0.25  # sqrt(0.4 * 10 / 64)
    normalize_features(classifier, (10, 64))
    torch.testing.assert_close(classifier(features), expected, rtol=1e-4, atol=1e-5)


def test_a_classifier_keeps_nothing_more_than_one_number_an_image() -> None:
    def kept(classifier: nn.Module) -> int:
        features = torch.randn(5, 64).mul(2).requires_grad_()
        inputs = features * 1  # of which nobody else keeps anything
        with saved_tensors() as seen:
            classifier(inputs)
        parameters = storages(list(classifier.parameters()))
        return sum(size for address, size in storages(seen).items() if address not in parameters)

    plain, ours = nn.Linear(64, 10), nn.Linear(64, 10)
    normalize_features(ours, (10, 64))
    assert kept(ours) == kept(plain) + 5 * 4


@pytest.mark.parametrize("features", [8, 64, 1280])
def test_a_step_changes_the_logits_of_wide_and_narrow_networks_alike(features: int) -> None:
    classifier = nn.Linear(features, 1, bias=False)
    normalize_features(classifier, (1, features))
    image = torch.randn(1, features)
    before = classifier(image)
    before.sum().backward()
    with torch.no_grad():
        classifier.weight.add_(classifier.weight.grad)  # type: ignore[arg-type]
        assert float(classifier(image) - before) == pytest.approx(0.4, rel=1e-3)


def test_what_normalises_a_layer_can_be_asked_for() -> None:
    classifier = nn.Linear(4, 2)
    classifier.register_forward_pre_hook(lambda layer, inputs: None)
    assert feature_norm(classifier) is None
    normalize_features(classifier, (10, 4))
    assert feature_norm(classifier) == FeatureNorm(1.0)
    normalize_features(averaged := nn.Conv2d(4, 10, 1), (10, 4, 1, 1))
    assert feature_norm(averaged) == FeatureNorm(math.sqrt(8))


# Networks.


@every_network
@pytest.mark.parametrize("keep_dense", [None, []], ids=["dense", "sparse"])
def test_every_network_gives_its_classifier_features_of_one_size(
    name: str, keep_dense: list[str] | None
) -> None:
    model, classifier = normalized(name, keep_dense=keep_dense)
    assert isinstance(classifier, SparseConv2d) == (keep_dense == [])
    seen = given_to(classifier)
    model(images_for(model))
    (features,) = (inputs.flatten(1) for inputs in seen)
    torch.testing.assert_close(features.square().mean(1), torch.ones(5), rtol=1e-3, atol=0)
    torch.testing.assert_close(features.mean(1), torch.zeros(5), rtol=0, atol=1e-4)
    norm = feature_norm(classifier)
    assert norm is not None
    assert norm.scale == pytest.approx(expected_scale(name))


@every_network
def test_parameters_keep_their_names_and_the_classifier_its_class(name: str) -> None:
    build, classifier, _ = NETWORKS[name]
    plain, (model, _) = build(), normalized(name)
    assert type(model.get_submodule(classifier)) is type(plain.get_submodule(classifier))
    assert [key for key, _ in model.named_modules()] == [key for key, _ in plain.named_modules()]
    shapes = [
        {key: value.shape for key, value in each.get_submodule(classifier).state_dict().items()}
        for each in (plain, model)
    ]
    assert shapes[0] == shapes[1]


def chain(*between: nn.Module) -> nn.Sequential:
    """A small network with something before its classifier."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), *between, nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ).append(nn.Linear(8, 10))


class NormalizingCall(nn.Module):
    def __init__(self, normalizing: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.fc, self.normalizing = nn.Conv2d(3, 8, 3), nn.Linear(8, 10), normalizing

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.normalizing(self.conv(images).mean((2, 3))))
        return logits


OWN_NORM: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "a BatchNorm that is skipped": (lambda: chain(nn.BatchNorm2d(8)), {"skip": ["3"]}),
    "a LayerNorm that is skipped": (lambda: chain(nn.LayerNorm([8, 12, 12])), {"skip": ["3"]}),
    "a GroupNorm that is skipped": (lambda: chain(nn.GroupNorm(2, 8), nn.ReLU()), {"skip": ["3"]}),
    "a LayerNorm without parameters": (
        lambda: chain(nn.LayerNorm([8, 12, 12], elementwise_affine=False)),
        {},
    ),
    "F.layer_norm": (lambda: NormalizingCall(lambda features: F.layer_norm(features, (8,))), {}),
    "F.normalize": (lambda: NormalizingCall(F.normalize), {}),
}


@pytest.mark.parametrize("name", OWN_NORM)
def test_a_network_that_normalises_its_features_itself_is_left_alone(name: str) -> None:
    build, options = OWN_NORM[name]
    model = sparsify(build(), sparsity=0.5, normalize=True, **options)
    assert [module for module in model.modules() if feature_norm(module) is not None] == []
    assert model(torch.randn(2, 3, 16, 16)).shape == (2, 10)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (chain(), {"normalize": False}),
        (chain(), {"normalize": True, "skip": ["5"]}),
        (nn.Sequential(nn.Flatten(), nn.Linear(768, 10)), {"normalize": True}),
    ],
    ids=["no normalisation", "a skipped classifier", "a single layer"],
)
def test_without_a_reason_no_classifier_is_normalised(model: nn.Module, options: dict[str, Any]) -> None:
    sparsify(model, sparsity=0.5, **options)
    assert [module for module in model.modules() if feature_norm(module) is not None] == []


def test_a_batchnorm_that_goes_away_does_not_count() -> None:
    model = sparsify(chain(nn.BatchNorm2d(8)), sparsity=0.5, normalize=True)
    assert isinstance(model.get_submodule("3"), nn.Identity)
    assert feature_norm(model.get_submodule("6")) is not None


def test_a_norm_before_an_earlier_layer_does_not_count() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 14), nn.Flatten(), nn.Linear(8, 10)
    )
    sparsify(model, sparsity=0.5, normalize=True, skip=["1"])
    assert feature_norm(model[-1]) is not None


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "vgg"])  # dropout is no operation
def test_as_data_it_is_two_operations_around_the_classifier(name: str) -> None:
    model, _ = normalized(name)
    data = exported(model)
    assert data.network.opaque is None
    (norm,) = (step for step in data.network.operations if isinstance(step, LayerNorm))
    (scaled,) = (step for step in data.network.operations if isinstance(step, Scale))
    classifier = next(step for step in data.network.operations if step.name == scaled.inputs[0])
    assert classifier.inputs == (norm.name,)
    assert scaled.factor == pytest.approx(expected_scale(name))
    assert data.network.arrays.keys() == model.state_dict().keys()

    executed = NetworkModule(data.network).eval()
    load_state(executed, data.network, data.state)
    images = images_for(model)
    torch.testing.assert_close(executed(images), model(images), rtol=1e-4, atol=1e-4)


def test_a_copy_normalises_as_well() -> None:
    model, _ = normalized("mobilenet")
    copied, images = copy.deepcopy(model), images_for(model)
    assert feature_norm(copied.get_submodule("classifier")) is not None
    assert torch.equal(copied(images), model(images))
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    assert model(images).any()
    assert not copied(images).any()


def test_a_state_can_be_loaded_into_another_one() -> None:
    model, _ = normalized("preact_resnet")
    other, _ = normalized("preact_resnet", seed=1)
    images = images_for(model)
    assert not torch.equal(other(images), model(images))
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(images), model(images))
