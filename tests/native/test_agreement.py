"""The native backend computes what PyTorch does, for every built-in network."""

import pytest

pytest.importorskip("fedmef.native._kernels")

import numpy as np

from fedmef.device.native_backend import NativeBackend, unsupported
from fedmef.experiment.settings import Experiment
from fedmef.native._kernels import available
from fedmef.nn.backend import TorchBackend
from fedmef.sparsity.model import Model
from fedmef.sparsity.network import INPUT, Input, Network
from fedmef.sparsity.operations import (
    Add,
    AveragePool,
    BatchNorm,
    Concatenate,
    Convolution,
    Flatten,
    Linear,
    MaxPool,
    Operation,
)
from tests.native.random_networks import random_state
from tests.native.reference import assert_step_agrees, compute
from tests.nn.prepared import EXPERIMENT, exported, images_for, labels_for, prepared

SMALL = ("resnet18-cifar", "resnet18-strided", "resnet18-imagenet", "mobilenet_v2-strided", "small_cnn-cifar")
OTHERS = ("dense_net", "padded_vgg", "preact_resnet", "mobilenet", "shared_activation")
RECIPES = ("plain", "sparse", "pruned caches", "nsconv", "dense nsconv", "no norm")


def modelled(
    name: str, recipe: str, experiment: Experiment = EXPERIMENT
) -> tuple[Model, np.ndarray, np.ndarray]:
    """A model, images and labels for it."""
    module = prepared(name, recipe, experiment)
    return exported(module), images_for(module, 33), labels_for(33)


@pytest.mark.parametrize("count", [9, 16])  # too few for the lanes of AVX-512, and enough for all
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", SMALL + OTHERS)
def test_a_step_agrees_with_pytorch(name: str, recipe: str, count: int) -> None:
    model, images, labels = modelled(name, recipe)
    assert unsupported(model.network) is None
    assert_step_agrees(
        NativeBackend(model.network, inspect=True), model.state, images[:count], labels[:count]
    )


@pytest.mark.parametrize("instructions", available())
@pytest.mark.parametrize("batch", [1, 2, 7, 16, 33])
@pytest.mark.parametrize("recipe", ["nsconv", "pruned caches"])
def test_every_batch_size_agrees_on_every_instruction_set(recipe: str, batch: int, instructions: str) -> None:
    model, images, labels = modelled("small_cnn-cifar", recipe)
    backend = NativeBackend(model.network, instructions=instructions, inspect=True)
    assert_step_agrees(backend, model.state, images[:batch], labels[:batch])


@pytest.mark.parametrize("instructions", available())
@pytest.mark.parametrize("name", ["preact_resnet", "mobilenet"])
def test_residuals_and_depthwise_layers_agree_on_every_instruction_set(name: str, instructions: str) -> None:
    model, images, labels = modelled(name, "nsconv")
    backend = NativeBackend(model.network, instructions=instructions, inspect=True)
    assert_step_agrees(backend, model.state, images[:16], labels[:16])


@pytest.mark.parametrize("instructions", available())
@pytest.mark.parametrize("shape", [(2, 4, 1), (2, 5, 1), (2, 1, 4), (2, 1, 1)])
def test_depthwise_layers_of_planes_narrower_than_their_stride_agree(
    shape: tuple[int, int, int], instructions: str
) -> None:
    wide = Convolution(name="wide", inputs=(INPUT,), module="wide", shape=(40, 2, 1, 1))
    deep = Convolution(
        name="deep", inputs=("wide",), module="deep", shape=(40, 1, 3, 3), stride=(2, 2), padding=(1, 1),
        groups=40,
    )  # fmt: skip
    pixels = 40 * ((shape[1] + 1) // 2) * ((shape[2] + 1) // 2)
    classifier = Linear(name="classifier", inputs=("flat",), module="classifier", shape=(3, pixels))
    flat = Flatten(name="flat", inputs=("deep",))
    network = Network(Input(shape, (0.5,) * 2, (0.25,) * 2), (wide, deep, flat, classifier))
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (16, *shape), dtype=np.uint8)
    backend = NativeBackend(network, instructions=instructions, inspect=True)
    assert_step_agrees(backend, random_state(network, 0), images, generator.integers(0, 3, 16))


@pytest.mark.parametrize("instructions", available())
@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize(
    "inner",
    [
        Convolution(
            name="inner", inputs=("x",), module="inner", shape=(8, 8, 3, 3), padding=(1, 1), sparse=True
        ),
        Convolution(
            name="inner", inputs=("x",), module="inner", shape=(8, 1, 3, 3), padding=(1, 1), groups=8
        ),
        MaxPool(name="inner", inputs=("x",), kernel=(3, 3), stride=(1, 1), padding=(1, 1)),
        AveragePool(name="inner", inputs=("x",), kernel=(3, 3), stride=(1, 1), padding=(1, 1)),
        Concatenate(name="inner", inputs=("x",)),
    ],
    ids=lambda inner: inner.kind,
)
def test_a_shortcut_around_one_operation_agrees(inner: Operation, batch: int, instructions: str) -> None:
    """The sum has one gradient for both: what the operation adds must not go where it still reads."""
    network = Network(
        Input((1, 8, 8), (0.5,), (0.25,)),
        (
            Convolution(name="stem", inputs=(INPUT,), module="stem", shape=(8, 1, 3, 3), padding=(1, 1)),
            BatchNorm(name="x", inputs=("stem",), module="x", channels=8),
            inner,
            Add(name="sum", inputs=("inner", "x")),
            Flatten(name="flat", inputs=("sum",)),
            Linear(name="classifier", inputs=("flat",), module="classifier", shape=(3, 512)),
        ),
    )
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (batch, 1, 8, 8), dtype=np.uint8)
    backend = NativeBackend(network, instructions=instructions, inspect=True)
    assert_step_agrees(backend, random_state(network, 0), images, generator.integers(0, 3, batch))


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_half_precision_caches_agree(dtype: str) -> None:
    model, images, labels = modelled(
        "preact_resnet", "nsconv", EXPERIMENT.model_copy(update={"cache_dtype": dtype})
    )
    assert {layer.cache.dtype for layer in model.network.layers.values() if layer.cache.sparsity} == {dtype}
    assert_step_agrees(NativeBackend(model.network, inspect=True), model.state, images[:16], labels[:16])


@pytest.mark.parametrize("recipe", ["nsconv", "sparse"])
@pytest.mark.parametrize("name", ["resnet18-cifar", "mobilenet_v2-strided", "small_cnn-cifar", "dense_net"])
def test_predictions_agree(name: str, recipe: str) -> None:
    model, images, _ = modelled(name, recipe)
    native, reference = NativeBackend(model.network), TorchBackend(model.network)
    for backend in (native, reference):
        backend.load(model.state)
    expected = reference.predict(images)
    for batch in (1, 9, 33):
        found = native.predict(images[:batch])
        np.testing.assert_allclose(found, expected[:batch], atol=1e-5 * np.abs(expected).max())


def test_predictions_of_many_images_are_those_of_few() -> None:
    model, images, _ = modelled("small_cnn-cifar", "nsconv")
    backend = NativeBackend(model.network)
    backend.load(model.state)
    many = backend.predict(np.concatenate([images] * 4))
    assert many.shape == (132, 10)
    np.testing.assert_allclose(many[99:], backend.predict(images), atol=1e-6)


@pytest.mark.parametrize("batch", [3, 16])
@pytest.mark.parametrize("name", ["resnet18-cifar", "mobilenet", "small_cnn-cifar"])
@pytest.mark.parametrize("recipe", ["nsconv", "sparse"])
def test_growth_agrees(name: str, recipe: str, batch: int) -> None:
    model, images, labels = modelled(name, recipe)
    images, labels = images[:batch], labels[:batch]
    counts = {layer: 1 + number % 5 for number, layer in enumerate(model.network.sparse_layers)}
    backend = NativeBackend(model.network, inspect=True)
    backend.load(model.state)
    found = backend.growth(images, labels, counts)
    expected = compute(model.network, model.state, images, labels, backend.bits(), counts).scores
    assert found.keys() == expected.keys()
    for layer, scores in found.items():
        assert [str(array.dtype) for array in vars(scores).values()] == ["int32", "float32"]
        np.testing.assert_array_equal(scores.positions, expected[layer].positions, layer)
        largest = np.abs(expected[layer].gradients).max(initial=0)
        np.testing.assert_allclose(
            scores.gradients, expected[layer].gradients, rtol=1e-4, atol=1e-5 * largest
        )


@pytest.mark.parametrize("instructions", available())
@pytest.mark.parametrize("batch", [3, 16])
@pytest.mark.parametrize("recipe", ["nsconv", "sparse"])
def test_bits_do_not_depend_on_the_number_of_threads(recipe: str, batch: int, instructions: str) -> None:
    model, images, labels = modelled("preact_resnet", recipe)
    results = []
    for threads in (1, 2, 4):
        backend = NativeBackend(model.network, threads, instructions)
        backend.load(model.state)
        losses = [backend.step(images[:batch], labels[:batch], 0.1).loss for _ in range(3)]
        grown = backend.growth(images[:batch], labels[:batch], dict.fromkeys(model.network.sparse_layers, 3))
        results.append((losses, backend.state(), grown, backend.predict(images)))
    for losses, state, grown, logits in results[1:]:
        assert losses == results[0][0]
        assert all(np.array_equal(state[name], results[0][1][name]) for name in state)
        assert all(np.array_equal(grown[name].gradients, results[0][2][name].gradients) for name in grown)
        np.testing.assert_array_equal(logits, results[0][3])
