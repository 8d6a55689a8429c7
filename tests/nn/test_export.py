"""From PyTorch code to data, and what cannot be described."""

import copy
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmef.errors import UserError
from fedmef.nn import sparse_layers, sparsify
from fedmef.nn.backend import TorchBackend
from fedmef.nn.export import export_network, module_state
from fedmef.sparsity.model import check_state
from fedmef.sparsity.network import Input, Network
from fedmef.sparsity.operations import (
    AdaptiveAveragePool,
    AveragePool,
    BatchNorm,
    Cache,
    Convolution,
    Flatten,
    Linear,
    MaxPool,
    Normalization,
    ReLU,
)
from tests.nn import networks
from tests.nn.networks import Wrapped
from tests.nn.numpy_interpreter import execute
from tests.nn.prepared import (
    BUILDERS,
    exported,
    images_for,
    labels_for,
    normalized,
    prepared,
    with_every_recipe,
)

IMAGES = Input((3, 8, 8), (0.4, 0.5, 0.6), (0.2, 0.3, 0.25))


def export(module: nn.Module) -> Network:
    return export_network(module, IMAGES)


@pytest.mark.parametrize(("name", "recipe"), with_every_recipe(BUILDERS))
def test_numpy_computes_from_the_data_what_pytorch_does(name: str, recipe: str) -> None:
    module = prepared(name, recipe)
    model = exported(module)
    assert model.network.opaque is None
    images = images_for(module)
    found = execute(model.network, model.state, images)
    batch = normalized(module, images)
    with torch.no_grad():
        single, double = module(batch).numpy(), module.double()(batch.double()).numpy()
    largest = np.abs(single).max()
    assert np.abs(found - single).max() < 1e-5 * largest
    assert np.abs(found - double).max() < 1e-9 * largest


def test_a_small_network_as_data_by_hand() -> None:
    model = sparsify(
        nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1),
            nn.BatchNorm2d(4, eps=1e-3, momentum=0.2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 8, (1, 3), stride=2, groups=2, bias=False),
            nn.ReLU6(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 5),
        ),
        sparsity=0.5,
        activation_sparsity=0.8,
        cache_dtype=torch.float16,
    )
    network = export(model)
    assert network.input == IMAGES
    assert network.operations == (
        Convolution(
            name="_0",
            inputs=("input",),
            module="0",
            bias=True,
            sparse=False,
            shape=(4, 3, 3, 3),
            padding=(1, 1),
        ),
        BatchNorm(name="_1", inputs=("_0",), module="1", channels=4, epsilon=1e-3, momentum=0.2),
        ReLU(name="_2", inputs=("_1",)),
        MaxPool(name="_3", inputs=("_2",), kernel=(2, 2), stride=(2, 2)),
        Convolution(
            name="_4",
            inputs=("_3",),
            module="4",
            sparse=True,
            shape=(8, 2, 1, 3),
            stride=(2, 2),
            groups=2,
            cache=Cache(0.8, "fp16"),
        ),
        ReLU(name="_5", inputs=("_4",), upper=6.0),
        AdaptiveAveragePool(name="_6", inputs=("_5",)),
        Flatten(name="_7", inputs=("_6",)),
        Linear(name="_8", inputs=("_7",), module="8", bias=True, shape=(5, 8)),
    )
    assert network.classes == 5
    assert list(network.sparse_layers) == ["4"]
    assert network.arrays.keys() == model.state_dict().keys()


def test_nsconv_has_its_constants_and_its_gain() -> None:
    model = sparsify(
        networks.padded_vgg(), normalize=True, gamma=0.7, scaling="paper", affine=True, sparsity=0.5
    )
    layer = export_network(model, Input((3, 16, 16), (0.5,) * 3, (0.5,) * 3)).layers["4"]
    assert layer.normalization == Normalization(0.7, "paper", 8, 1e-6)
    assert (layer.gain, layer.bias, layer.sparse) == (True, True, True)


class Calls(nn.Module):
    """Two layers around a function of their own."""

    def __init__(self, call: Callable[["Calls", Tensor], Tensor]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.act = nn.ReLU(inplace=True)
        self.fc = nn.Linear(8, 5)
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.call(self, self.conv(x)))
        return logits


def pooled(x: Tensor) -> Tensor:
    return x.mean((2, 3))


DESCRIBED_CALLS: dict[str, tuple[Callable[[Calls, Tensor], Tensor], list[str]]] = {
    "mean": (lambda _, x: x.mean([3, 2]), ["adaptive_average_pool", "flatten"]),
    "mean, negative": (lambda _, x: torch.mean(x, dim=(-1, -2)), ["adaptive_average_pool", "flatten"]),
    "mean that keeps dimensions": (
        lambda _, x: x.mean((2, 3), keepdim=True).flatten(1),
        ["adaptive_average_pool", "flatten"],
    ),
    "window of the image's size": (
        lambda _, x: F.avg_pool2d(x, x.size(3)).view(x.size(0), -1),
        ["average_pool", "flatten"],
    ),
    "window of the image's shape": (
        lambda _, x: F.avg_pool2d(x, kernel_size=x.shape[2:]).reshape(x.shape[0], 8),
        ["average_pool", "flatten"],
    ),
    "ceil_mode by its place": (
        lambda _, x: pooled(F.max_pool2d(x, 3, 2, 1, 1, True)),
        ["max_pool", "adaptive_average_pool", "flatten"],
    ),
    "everything by name": (
        lambda _, x: pooled(F.relu(input=F.max_pool2d(input=x, kernel_size=3, ceil_mode=True))),
        ["max_pool", "relu", "adaptive_average_pool", "flatten"],
    ),
    "a sum with itself": (lambda _, x: pooled(x + x), ["add", "adaptive_average_pool", "flatten"]),
    "concatenation by name": (
        lambda _, x: pooled(F.adaptive_avg_pool2d(torch.cat(tensors=[x[0:], x], dim=1), 1)[:, :8]),
        ["opaque", "concatenate", "adaptive_average_pool", "opaque", "adaptive_average_pool", "flatten"],
    ),
    "in place, and read by nobody else": (
        lambda self, x: pooled(self.act(x)),
        ["relu", "adaptive_average_pool", "flatten"],
    ),
    "a copy": (lambda _, x: pooled(x.contiguous().clone()), ["adaptive_average_pool", "flatten"]),
}


@pytest.mark.parametrize("name", DESCRIBED_CALLS)
def test_calls_are_described_however_they_are_written(name: str) -> None:
    call, kinds = DESCRIBED_CALLS[name]
    network = export(Calls(call))
    assert [operation.kind for operation in network.operations] == ["convolution", *kinds, "linear"]


def overwritten(self: Calls, x: Tensor) -> Tensor:
    return pooled(torch.add(x, self.act(x)))


def overwritten_through_another_name(self: Calls, x: Tensor) -> Tensor:
    return pooled(torch.add(x, F.relu(x.contiguous(), True)))


OPAQUE_CALLS: dict[str, tuple[Callable[[Calls, Tensor], Tensor], str]] = {
    "an unknown function": (lambda _, x: pooled(F.silu(x)), "F.silu"),
    "a mean over channels": (lambda _, x: x.mean((1, 2)), "x.mean()"),
    "a mean of another type": (lambda _, x: x.mean((2, 3), dtype=torch.float64).float(), "x.mean()"),
    "a weighted sum": (lambda _, x: pooled(torch.add(x, x, alpha=2)), "torch.add"),
    "a sum of two shapes": (lambda _, x: pooled(x + x.mean((2, 3), keepdim=True)), "add"),
    "a constant": (lambda _, x: pooled(x + 1), "add"),
    "parts": (lambda _, x: pooled(torch.cat(x.chunk(2, 1)[::-1], 1)), "torch.cat"),
    "another dimension": (lambda _, x: pooled(torch.cat([x, x], 2)), "torch.cat"),
    "no gradient": (lambda _, x: pooled(x.detach()), "x.detach()"),
    "dropout": (lambda self, x: pooled(F.dropout(x, training=self.training)), "F.dropout"),
    "in place": (overwritten, "ReLU 'act'"),
    "in place, and read by another name": (overwritten_through_another_name, "F.relu"),
    "pixels as batch": (lambda _, x: x.permute(0, 2, 3, 1).flatten(1, 2).mean(1), "x.permute()"),
}


@pytest.mark.parametrize("name", OPAQUE_CALLS)
def test_what_has_no_description_is_opaque_and_says_what_it_is(name: str) -> None:
    call, description = OPAQUE_CALLS[name]
    model = Calls(call)
    network = export(model)
    assert network.opaque is not None
    # A module's call is in Calls.forward() or in the function around it; both are in this file.
    assert re.fullmatch(rf"{re.escape(description)}, test_export\.py line \d+", network.opaque.description)
    assert network.arrays.keys() == model.state_dict().keys()
    assert Network.from_json(network.to_json()) == network


class Noisy(nn.Module):
    """Something else in training, with a layer that only training uses."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.extra = nn.Conv2d(8, 8, 1)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        if self.training:
            x = x + self.extra(x)
        logits: Tensor = self.fc(pooled(x))
        return logits


class FrozenStatistics(nn.Module):
    """Its BatchNorm stays in evaluation mode, as in fine-tuning."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 5)

    def train(self, mode: bool = True) -> "FrozenStatistics":
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(pooled(self.norm(self.conv(x))))
        return logits


class StochasticDepth(nn.Module):
    """Uses its convolution twice now and then, while it is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 3, 3, padding=1), nn.Linear(3, 5)

    def forward(self, images: Tensor) -> Tensor:
        if self.training and torch.rand(()) < 0.01:
            images = self.conv(images)
        logits: Tensor = self.fc(self.conv(images).mean((2, 3)))
        return logits


@pytest.mark.parametrize("build", [Noisy, FrozenStatistics, StochasticDepth])
def test_what_is_different_in_training_must_be_trained_by_its_own_code(
    build: Callable[[], nn.Module],
) -> None:
    model = build()
    network = export(model)
    assert network.opaque is not None
    assert re.search("something else in training|leaves some modules", network.opaque.description)
    assert network.arrays.keys() == model.state_dict().keys()
    assert "conv" in network.layers  # the rest of it is described all the same


class ByShape(nn.Module):
    """Decides by shapes, as many people write it, with functions instead of modules."""

    def __init__(self, decide: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.fc = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 5)
        self.decide = decide

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[1] == 3, "colours"
        x = F.relu(self.norm(self.first(x)))
        if x.shape[-1] > 4:
            x = F.max_pool2d(x, int(x.size(2) * 0.25))
        x = self.decide(F.relu(self.second(x)) + x)
        logits: Tensor = self.fc(F.avg_pool2d(x, kernel_size=x.shape[2:]).view(len(x), -1))
        return logits


@pytest.mark.parametrize("options", [{}, {"normalize": True, "activation_sparsity": 0.8}])
def test_a_network_that_decides_by_shapes_is_data(options: dict[str, Any]) -> None:
    model = sparsify(ByShape(), sparsity=0.5, example=torch.rand(2, 3, 8, 8), quiet=True, **options)
    before = copy.deepcopy(model.state_dict())
    network = export(model)
    assert network.opaque is None
    kinds = [operation.kind for operation in network.operations]
    assert (kinds.count("relu"), kinds.count("max_pool"), kinds.count("average_pool")) == (2, 1, 1)
    assert all(operation.compact for operation in network.operations if isinstance(operation, ReLU))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 8, 8), dtype=np.uint8)
    with torch.no_grad():
        expected = model.eval()(torch.from_numpy(IMAGES.normalize(images))).numpy()
    found = execute(network, module_state(model, network), images)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def by_mean(x: Tensor) -> Tensor:
    return F.relu(x) if x.mean() > 0 else x


def by_batch(x: Tensor) -> Tensor:
    return F.relu(x) if len(x) > 2 else x


def by_number(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 1 + int(x.tolist()[0][0][0][0] > 1e9))


def by_large_batch(x: Tensor) -> Tensor:
    return F.relu(x) if len(x) > 64 else x


def by_named_numbers(x: Tensor) -> Tensor:
    return F.relu(x) if torch.equal(input=x, other=x) else x


def image_by_image(x: Tensor) -> Tensor:
    return torch.cat([x[number : number + 1] for number in range(len(x))])


def unknown(x: Tensor) -> Tensor:
    return F.silu(x)


@pytest.mark.parametrize(
    ("decide", "named"),
    [
        (by_mean, "x.mean(), test_export.py line {line}"),
        (by_number, "forward() decides by values of tensors: ByShape, test_export.py line {line}"),
        (by_batch, "forward() does something else for a batch of 3 than for one of 2"),
        (by_large_batch, "forward() does something else for a batch of 300 than for one of 2"),
        (by_named_numbers, "forward() decides by values of tensors: ByShape, test_export.py line {line}"),
        (image_by_image, "getitem, test_export.py line {line}"),
        (unknown, "F.silu, test_export.py line {line}"),
    ],
)
def test_what_an_example_cannot_say_is_opaque_and_names_the_call_and_the_line(
    decide: Callable[[Tensor], Tensor], named: str
) -> None:
    model = sparsify(ByShape(decide), sparsity=0.5, example=torch.rand(2, 3, 8, 8), quiet=True)
    network = export(model)
    assert network.opaque is not None
    line = decide.__code__.co_firstlineno + 1
    assert network.opaque.description.removeprefix("ByShape: ") == named.format(line=line)
    assert network.arrays.keys() == model.state_dict().keys()


def test_where_a_network_is_different_in_training_is_named() -> None:
    network = export(StochasticDepth())
    assert network.opaque is not None
    line = StochasticDepth.forward.__code__.co_firstlineno + 1
    assert network.opaque.description == (
        "StochasticDepth: forward() does something else in training: StochasticDepth, "
        f"test_export.py line {line}"
    )


class Unfinished(nn.Module):
    """Its last call is not what it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(192, 5)
        self.unread = nn.Linear(192, 5)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(x.flatten(1))
        self.unread(x.flatten(1))
        return logits


class Attention(nn.Module):
    """A module of PyTorch's that has weights and that we do not know."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm([8, 8, 8])
        self.groups = nn.GroupNorm(2, 8)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.groups(self.norm(x)) + self.seen)


def opaque_networks() -> dict[str, nn.Module]:
    return {
        "SiLU": Wrapped(nn.SiLU()),
        "LayerNorm": Wrapped(Attention()),
        "dropout": Wrapped(nn.Dropout2d(0.3)),
        "control flow": Wrapped(networks.DataDependent()),
        "parameter": Wrapped(networks.OwnParameter()),
        "PReLU": Wrapped(nn.PReLU(8)),
        "own convolution": Wrapped(networks.OwnConvolution(8, 8, 1)),
        "reflected padding": Wrapped(nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect")),
        "weight norm": Wrapped(nn.utils.parametrizations.weight_norm(nn.Conv2d(8, 8, 1))),
        "no statistics": Wrapped(nn.BatchNorm2d(8, track_running_stats=False)),
        "cumulative statistics": Wrapped(nn.BatchNorm2d(8, momentum=None)),
        "overwritten": Wrapped(networks.OverwrittenShortcut()),
        "F.conv2d": Wrapped(networks.FunctionalConvolution()),
        "unfinished": Unfinished(),
        "training": Noisy(),
        "frozen statistics": FrozenStatistics(),
    }


@pytest.mark.parametrize("name", opaque_networks())
def test_a_network_with_something_unknown_has_all_its_arrays_and_trains(name: str) -> None:
    torch.manual_seed(0)
    model = opaque_networks()[name]
    network = export(model)
    assert network.opaque is not None
    assert network.arrays.keys() == model.state_dict().keys()
    state = module_state(model, network)
    check_state(network, state)
    assert Network.from_json(network.to_json()) == network

    with pytest.raises(UserError, match="needs its own PyTorch code"):
        TorchBackend(network)
    backend = TorchBackend(network, module=opaque_networks()[name])
    backend.load(state)
    images = np.random.default_rng(0).integers(0, 256, (4, 3, 8, 8), dtype=np.uint8)
    model.eval()
    with torch.no_grad():
        expected = model(torch.from_numpy(IMAGES.normalize(images)))
    np.testing.assert_allclose(backend.predict(images), expected.numpy(), rtol=1e-4, atol=1e-5)
    labels = labels_for(4) % network.classes
    losses = [backend.step(images, labels, 0.1).loss for _ in range(15)]
    assert losses[-1] < losses[0]
    assert any(not np.array_equal(array, state[key]) for key, array in backend.state().items())


def test_a_frozen_parameter_stays_frozen() -> None:
    model = networks.padded_vgg()
    model[0].weight.requires_grad_(False)
    model[10].bias.requires_grad_(False)
    sparsify(model, sparsity=0.5, keep_dense=[])
    network = export_network(model, Input((3, 16, 16), (0.5,) * 3, (0.5,) * 3))
    assert network.frozen == ("0.values", "10.bias")
    whole = Unfinished()
    whole.fc.requires_grad_(False)
    assert export(whole).frozen == ("fc.weight", "fc.bias")


def modes(model: nn.Module) -> dict[str, bool]:
    return {name: module.training for name, module in model.named_modules()}


@pytest.mark.parametrize(
    "build", [networks.padded_vgg, networks.vgg, FrozenStatistics, lambda: Wrapped(networks.DataDependent())]
)
@pytest.mark.parametrize("training", [True, False])
def test_exporting_leaves_a_model_as_it_is(build: Callable[[], nn.Module], training: bool) -> None:
    model = build().train(training)
    next(module for module in model.modules() if isinstance(module, nn.Conv2d)).eval()
    before, state = modes(model), copy.deepcopy(model.state_dict())
    generator = torch.get_rng_state()
    exported(model)
    assert modes(model) == before
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), generator)


def test_the_mode_is_restored_after_an_error_too() -> None:
    model = networks.padded_vgg().train()
    with pytest.raises(UserError):
        export_network(model, Input((1, 16, 16), (0.5,), (0.5,)))
    assert all(modes(model).values())


def test_the_arrays_of_a_model_are_copies() -> None:
    model = networks.padded_vgg()
    state = exported(model).state
    with torch.no_grad():
        model.get_parameter("0.weight").fill_(7)
    assert not (state["0.weight"] == 7).any()


@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 2, 2)])
def test_images_that_do_not_fit_are_named(shape: tuple[int, int, int]) -> None:
    images = Input(shape, (0.5,) * shape[0], (0.5,) * shape[0])
    with pytest.raises(
        UserError, match=rf"cannot take images of shape \[{shape[0]}, {shape[1]}, {shape[2]}\]: "
    ):
        export_network(networks.padded_vgg(), images)


class Answers(nn.Module):
    def __init__(self, answer: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.fc = nn.Linear(192, 5)
        self.answer = answer

    def forward(self, x: Tensor) -> Any:
        return self.answer(self.fc(x.flatten(1)))


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (lambda logits: (logits, logits), "answers tuple to 2 images"),
        (lambda logits: {"out": logits}, "answers dict to 2 images"),
        (lambda logits: logits[:, :, None], r"answers \[2, 5, 1\] to 2 images"),
        (lambda logits: logits[0], r"answers \[5\] to 2 images"),
        (lambda logits: logits[:1], r"answers \[1, 5\] to 2 images"),
        (lambda logits: None, "answers NoneType to 2 images"),
    ],
)
def test_an_answer_that_is_not_logits_is_named(answer: Callable[[Tensor], Any], named: str) -> None:
    with pytest.raises(UserError, match=f"{named}: it must answer a row of numbers for each"):
        export(Answers(answer))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused_with_the_remedy(dtype: torch.dtype) -> None:
    with pytest.raises(UserError, match=rf"0\.weight is of type {dtype}: .*model\.float\(\) converts it"):
        export(networks.padded_vgg().to(dtype))


def test_a_buffer_of_an_unknown_type_is_named() -> None:
    model = Wrapped(nn.SiLU())
    model.part.register_buffer("flags", torch.zeros(3, dtype=torch.bool))
    with pytest.raises(UserError, match=r"part\.flags is of type torch\.bool"):
        export(model)


class SparseSequence(nn.Module):
    """A linear layer of every pixel, which no operation describes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.hidden = nn.Linear(8, 8)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.hidden(self.conv(x).permute(0, 2, 3, 1))
        logits: Tensor = self.fc(x.mean((1, 2)))
        return logits


def test_a_sparse_layer_that_is_hidden_from_every_method_is_refused() -> None:
    with pytest.raises(UserError, match="the sparse layer 'hidden' cannot be described"):
        export(sparsify(SparseSequence(), sparsity=0.5))
    whole = sparsify(Unfinished(), sparsity=0.5, keep_dense=[])
    with pytest.raises(UserError, match="the last call in forward"):
        export(whole)


def test_sparse_layers_next_to_something_opaque_are_known() -> None:
    model = sparsify(networks.vgg(), sparsity=0.5)
    network = exported(model).network
    assert network.opaque is not None
    assert network.opaque.description == "Dropout '16'"
    assert network.sparse_layers.keys() == sparse_layers(model).keys()


def test_a_cache_type_that_a_federation_does_not_know_is_named() -> None:
    model = sparsify(networks.padded_vgg(), activation_sparsity=0.5, cache_dtype=torch.float64)
    with pytest.raises(UserError, match=r"cache_dtype = torch\.float64"):
        exported(model)


@pytest.mark.parametrize("compact", [True, False])
def test_functional_calls_keep_what_modules_keep(compact: bool) -> None:
    model = sparsify(networks.preact_resnet(), sparsity=0.5, compact_activations=compact)
    kinds = (ReLU, MaxPool, AveragePool, AdaptiveAveragePool)
    found = [operation for operation in exported(model).network.operations if isinstance(operation, kinds)]
    assert len(found) == 9
    assert {operation.compact for operation in found} == {compact}


def test_data_that_computes_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedmef.nn.trace._FUNCTIONS", {F.relu: nn.ReLU6})
    model = Calls(lambda _, x: pooled(F.relu(x)))
    assert model.conv.bias is not None
    nn.init.constant_(model.conv.bias, 50.0)
    network = export(model)
    assert network.opaque is not None
    assert "computes something else than its code" in network.opaque.description


def test_a_rounding_that_a_deep_network_blows_up_is_no_bug() -> None:
    layers: list[nn.Module] = []
    for _ in range(40):
        layers += [nn.Conv2d(8, 8, 3, padding=1), nn.ReLU6()]
    plain = nn.Sequential(nn.Conv2d(3, 8, 3), *layers, nn.Flatten(), nn.Linear(8 * 36, 5))
    model = sparsify(plain, sparsity=0.2, normalize=True, gamma=2.0)
    network = export(model)
    batch = torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        single, double = model(batch), model.double()(batch.double())
    assert (single - double).abs().max() > 1e-4 * double.abs().max()  # it does
    assert network.opaque is None


class FrozenPart(nn.Module):
    """A backbone that no gradient reaches, by code and not by `requires_grad`."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)

    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            features = self.conv(images).mean((2, 3))
        logits: Tensor = self.fc(features)
        return logits


class SharedWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.fc = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1), nn.Linear(3, 5)
        self.two.weight = self.one.weight

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.two(self.one(images)).mean((2, 3)))
        return logits


@pytest.mark.parametrize(
    ("build", "why"), [(FrozenPart, "trained in another way"), (SharedWeight, "share weights")]
)
def test_what_data_would_train_in_another_way_has_its_own_code(build: type[nn.Module], why: str) -> None:
    network = export(build())
    assert network.opaque is not None
    assert why in network.opaque.description


def test_looking_for_training_changes_no_module_and_draws_no_number() -> None:
    model = StochasticDepth()
    kinds, before = [type(module) for module in model.modules()], torch.random.get_rng_state()
    digests = {export(model).digest for _ in range(3)}
    assert len(digests) == 1
    assert [type(module) for module in model.modules()] == kinds
    assert torch.equal(torch.random.get_rng_state(), before)
