"""A network as data, executed by PyTorch, is the module that it was made from."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmef.errors import NetworkError, UserError
from fedmef.nn import SparseConv2d, SparseLinear, sparse_layers, sparsify
from fedmef.nn.module import NetworkModule, load_state, normalize
from fedmef.nn.swat import SwatConv2d
from fedmef.sparsity.model import Model
from fedmef.sparsity.network import Input, Network
from fedmef.sparsity.operations import Add, Convolution, Flatten, Linear, Opaque, ReLU
from tests.nn import networks
from tests.nn.prepared import (
    BUILT_IN,
    RECIPES,
    exported,
    images_for,
    labels_for,
    normalized,
    prepared,
    with_every_recipe,
)
from tests.nn.saved import saved_bytes


def executed(model: Model) -> NetworkModule:
    module = NetworkModule(model.network)
    load_state(module, model.network, model.state)
    return module


def trained(module: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The loss, the gradients and what a pass in training mode leaves of buffers."""
    module.train().zero_grad()
    loss = F.cross_entropy(module(images), labels)
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = {f"grad/{name}": value.grad for name, value in module.named_parameters()}
    found = {name: gradient for name, gradient in gradients.items() if gradient is not None}
    return {"loss": loss.detach(), **found, **dict(module.named_buffers())}


def channels_last(images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("name", "recipe"), with_every_recipe(BUILT_IN))
def test_our_networks_have_the_same_bits_in_evaluation_and_in_training(name: str, recipe: str) -> None:
    module = prepared(name, recipe)
    twin = executed(exported(module))
    images = channels_last(normalized(module, images_for(module)))
    with torch.no_grad():
        assert torch.equal(twin.eval()(images), module.eval()(images))
    labels = torch.from_numpy(labels_for())
    expected, found = trained(module, images, labels), trained(twin, images, labels)
    assert found.keys() == expected.keys()
    assert [key for key, tensor in expected.items() if not torch.equal(tensor, found[key])] == []


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", networks.DESCRIBED)
def test_other_networks_compute_the_same_in_evaluation_and_in_training(name: str, recipe: str) -> None:
    """In double precision: our layout is another one, so sums are added up in another order."""
    module = prepared(name, recipe)
    twin = executed(exported(module)).double()
    module.double()
    images, labels = normalized(module, images_for(module)).double(), torch.from_numpy(labels_for())
    with torch.no_grad():
        torch.testing.assert_close(twin.eval()(images), module.eval()(images), rtol=1e-9, atol=1e-9)
    expected, found = trained(module, images, labels), trained(twin, images, labels)
    assert found.keys() == expected.keys()
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "recipe"),
    with_every_recipe(["resnet18-imagenet", "mobilenet_v2-cifar", "small_cnn-cifar", "inception"]),
)
def test_no_more_is_kept_for_the_backward_pass(name: str, recipe: str) -> None:
    module = prepared(name, recipe).train()
    twin = executed(exported(module)).train()
    images = channels_last(normalized(module, images_for(module, 8)))
    labels = torch.from_numpy(labels_for(8))
    assert saved_bytes(twin, images, labels) == saved_bytes(module, images, labels)


@pytest.mark.parametrize("name", ["resnet18-cifar", "mobilenet_v2-imagenet", "padded_vgg"])
@pytest.mark.parametrize("recipe", ["nsconv", "swat", "plain"])
def test_a_network_that_was_sent_as_json_computes_the_same(name: str, recipe: str) -> None:
    model = exported(prepared(name, recipe))
    sent = Network.from_json(model.network.to_json())
    assert sent == model.network
    images = torch.from_numpy(images_for(prepared(name, recipe)))
    with torch.no_grad():
        expected = executed(model).eval()(images)
        assert torch.equal(executed(Model(sent, model.state)).eval()(images), expected)


def test_modules_are_of_the_same_kinds_and_have_the_same_names() -> None:
    module = prepared("padded_vgg", "nsconv")
    twin = executed(exported(module))
    assert twin.state_dict().keys() == module.state_dict().keys()
    found = sparse_layers(twin)
    for name, layer in sparse_layers(module).items():
        assert type(found[name]) is type(layer)
        assert found[name].geometry == layer.geometry
        assert found[name].cache == layer.cache
    assert {type(layer) for layer in found.values()} == {SparseConv2d, SparseLinear}
    swat = executed(exported(prepared("small_cnn-cifar", "swat")))
    sparsities = {layer.sparsity for layer in swat.modules() if isinstance(layer, SwatConv2d)}
    assert sparsities == {0.6}


def test_a_module_may_have_the_name_of_something_of_ours() -> None:
    network = Network(
        Input((3, 8, 8), (0.5,) * 3, (0.5,) * 3),
        (
            Convolution(name="a", inputs=("input",), module="network", shape=(3, 3, 3, 3), padding=(1, 1)),
            Convolution(name="b", inputs=("a",), module="forward.type", shape=(3, 3, 3, 3), padding=(1, 1)),
            Flatten(name="c", inputs=("b",)),
            Linear(name="d", inputs=("c",), module="_steps", shape=(2, 192)),
        ),
    )
    twin = NetworkModule(network)
    assert list(twin.state_dict()) == ["network.weight", "forward.type.weight", "_steps.weight"]
    state = {name: np.full(spec.shape or (), 0.1, np.float32) for name, spec in network.arrays.items()}
    load_state(twin, network, state)
    assert twin(torch.zeros(1, 3, 8, 8, dtype=torch.uint8)).shape == (1, 2)


def tiny(*, frozen: tuple[str, ...] = (), upper: float | None = None, compact: bool = True) -> Network:
    """One pixel of two channels: a sparse 1x1 convolution, ReLU, and the identity as its classifier."""
    return Network(
        Input((2, 1, 1), (0.0, 0.0), (1.0, 1.0)),
        (
            Convolution(name="a", inputs=("input",), module="conv", sparse=True, shape=(2, 2, 1, 1)),
            ReLU(name="b", inputs=("a",), upper=upper, compact=compact),
            Flatten(name="c", inputs=("b",)),
            Linear(name="d", inputs=("c",), module="fc", shape=(2, 2), bias=True),
        ),
        frozen,
    )


def tiny_state(values: list[float], mask: int) -> dict[str, Any]:
    return {
        "conv.values": np.array(values, np.float32),
        "conv.mask": np.array([mask], np.uint8),
        "fc.weight": np.eye(2, dtype=np.float32),
        "fc.bias": np.zeros(2, np.float32),
    }


def test_a_tiny_network_by_hand() -> None:
    twin = executed(Model(tiny(), tiny_state([2.0, -1.0], 0b0110)))  # [[0, 2], [-1, 0]]
    pixel = torch.tensor([3.0, 5.0]).view(1, 2, 1, 1)
    assert twin(pixel).tolist() == [[10.0, 0.0]]
    assert twin(-pixel).tolist() == [[0.0, 3.0]]
    images = torch.tensor([255, 51], dtype=torch.uint8).view(1, 2, 1, 1)
    torch.testing.assert_close(twin(images), torch.tensor([[2 * 0.2, 0.0]]))


def test_building_draws_no_random_number() -> None:
    networks_ = [
        exported(prepared(name, recipe)).network
        for name, recipe in (("padded_vgg", "plain"), ("inception", "nsconv"))
    ]
    before = torch.get_rng_state()
    for network in networks_:
        NetworkModule(network)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_state_with_other_numbers_of_active_weights_can_be_loaded() -> None:
    network = tiny(frozen=("conv.values",))
    twin = executed(Model(network, tiny_state([2.0, -1.0], 0b0110)))
    load_state(twin, network, tiny_state([1.0, 2.0, 3.0], 0b1101))  # [[1, 0], [2, 3]]
    assert twin(torch.tensor([1.0, 10.0]).view(1, 2, 1, 1)).tolist() == [[1.0, 32.0]]
    assert not sparse_layers(twin)["conv"].values.requires_grad
    load_state(twin, network, tiny_state([], 0))
    assert twin(torch.ones(1, 2, 1, 1)).tolist() == [[0.0, 0.0]]


def test_a_state_is_copied_and_may_be_read_only() -> None:
    state = tiny_state([2.0, -1.0], 0b0110)
    for array in state.values():
        array.flags.writeable = False
    twin = executed(Model(tiny(), state))
    with torch.no_grad():
        sparse_layers(twin)["conv"].values.fill_(7)
    assert state["conv.values"].tolist() == [2.0, -1.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fc.bias": np.zeros(3, np.float32)}, r"fc\.bias is of shape \[3\] instead of \[2\]"),
        ({"fc.bias": np.zeros(2)}, "fc.bias is of type float64 instead of float32"),
        ({"conv.mask": np.array([0b0111], np.uint8)}, "3 active positions but conv.values has 2"),
        ({"other": np.zeros(2)}, "has no other"),
    ],
)
def test_a_state_of_another_network_is_refused_and_changes_nothing(
    change: dict[str, Any], message: str
) -> None:
    twin = executed(Model(tiny(), tiny_state([2.0, -1.0], 0b0110)))
    before = copy.deepcopy(twin.state_dict())
    with pytest.raises(NetworkError, match=message):
        load_state(twin, tiny(), tiny_state([5.0, 6.0], 0b1001) | change)
    assert all(torch.equal(tensor, before[name]) for name, tensor in twin.state_dict().items())


def test_what_is_frozen_gets_no_gradient() -> None:
    twin = executed(Model(tiny(frozen=("conv.values", "fc.bias")), tiny_state([2.0, -1.0], 0b0110)))
    F.cross_entropy(twin(torch.ones(1, 2, 1, 1)), torch.tensor([0])).backward()  # type: ignore[no-untyped-call]
    with_gradient = {name for name, parameter in twin.named_parameters() if parameter.grad is not None}
    assert with_gradient == {"fc.weight"}


@pytest.mark.parametrize("compact", [True, False])
@pytest.mark.parametrize(("upper", "plain"), [(None, F.relu), (6.0, F.relu6)])
def test_a_relu_has_pytorchs_gradient_on_its_edges(compact: bool, upper: float | None, plain: Any) -> None:
    twin = executed(Model(tiny(upper=upper, compact=compact), tiny_state([1.0, 1.0], 0b1001)))
    for pixel in ([0.0, -0.0], [6.0, 1.0], [7.0, -1.0], [5.9, 0.0]):
        images = torch.tensor(pixel).view(1, 2, 1, 1)
        ours, theirs = images.clone().requires_grad_(), images.clone().requires_grad_()
        twin(ours).sum().backward()
        plain(theirs).sum().backward()
        assert ours.grad is not None
        assert theirs.grad is not None
        assert torch.equal(ours.grad, theirs.grad), pixel


def test_a_network_with_opaque_operations_needs_its_own_code() -> None:
    network = tiny()
    opaque = Opaque(name="e", inputs=("d",), description="SiLU 'act'", shape=(2,))
    with pytest.raises(UserError, match=r"needs its own PyTorch code: 'e' \(SiLU 'act'\)"):
        NetworkModule(replace(network, operations=(*network.operations, opaque)))


def test_a_result_is_let_go_after_its_last_use_only() -> None:
    """`a` is read three times, once by an operation that takes it twice."""
    steps = (
        Flatten(name="a", inputs=("input",)),
        Add(name="b", inputs=("a", "a")),
        Add(name="c", inputs=("b", "a")),
        Add(name="d", inputs=("c", "b")),
    )
    twin = NetworkModule(Network(Input((2, 1, 1), (0.0, 0.0), (1.0, 1.0)), steps))
    assert twin(torch.tensor([1.0, 10.0]).view(1, 2, 1, 1)).tolist() == [[5.0, 50.0]]
    uses = {name: sorted(gone) for name, gone in twin._last_uses.items()}
    assert uses == {"a": ["input"], "b": [], "c": ["a"], "d": ["b", "c"]}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_images_are_normalised_as_the_network_says(layout: torch.memory_format) -> None:
    how = Input((3, 4, 5), (0.1, 0.5, 0.9), (0.2, 0.3, 1.0))
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 5), dtype=np.uint8)
    found = normalize(torch.from_numpy(images), how, layout)
    assert found.is_contiguous(memory_format=layout)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), how.normalize(images), rtol=1e-6, atol=1e-6)
    mean, std = np.array(how.mean)[:, None, None], np.array(how.std)[:, None, None]
    np.testing.assert_allclose(found.numpy(), (images / 255 - mean) / std, rtol=1e-5, atol=1e-5)


def test_a_layer_that_is_used_twice_is_one_module() -> None:
    twin = executed(exported(sparsify(networks.Inception(), sparsity=0.5)))
    assert sum(isinstance(layer, SparseConv2d) for layer in twin.modules()) == 4
    assert [operation.module for operation, _ in twin._steps if isinstance(operation, Convolution)].count(
        "again"
    ) == 2
