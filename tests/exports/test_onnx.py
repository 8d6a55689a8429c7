"""An ONNX file answers what the network answers, for every network and method that there is."""

import numpy as np
import onnxruntime
import pytest
import torch

from fedmef.experiment.settings import Experiment
from fedmef.exports.onnx import onnx_model
from fedmef.nn.densify import dense_model
from fedmef.nn.module import NetworkModule, load_state
from fedmef.sparsity.arrays import Array
from fedmef.sparsity.model import Model
from fedmef.sparsity.network import INPUT, Input, Network
from fedmef.sparsity.operations import (
    AdaptiveAveragePool,
    AveragePool,
    Flatten,
    MaxPool,
    Operation,
    ReLU,
)
from tests.nn.prepared import BUILDERS, RECIPES, exported, prepared


def answers(model: Model, images: Array) -> Array:
    content = onnx_model(dense_model(model)).SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"images": images})
    return np.asarray(logits)


def expected(model: Model, images: Array) -> Array:
    module = NetworkModule(model.network).eval()
    load_state(module, model.network, model.state)
    with torch.no_grad():
        return np.asarray(module(torch.from_numpy(images)))


def pixels(shape: tuple[int, ...], count: int = 3) -> Array:
    return np.random.default_rng(0).integers(256, size=(count, *shape), dtype=np.uint8)


def assert_same(model: Model) -> None:
    images = pixels(model.network.input.shape)
    wanted = expected(model, images)
    assert np.abs(answers(model, images) - wanted).max() <= 1e-4 * max(1.0, float(np.abs(wanted).max()))


@pytest.mark.parametrize("name", BUILDERS)
def test_every_network_gives_the_same_logits(name: str) -> None:
    assert_same(exported(prepared(name, "nsconv")))


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_method_gives_the_same_logits(recipe: str) -> None:
    assert_same(exported(prepared("resnet18-cifar", recipe)))


STEPS: dict[str, list[Operation]] = {
    "max pool": [
        MaxPool(name="pool", inputs=(INPUT,), kernel=(3, 2), stride=(2, 3), padding=(1, 0), dilation=(2, 1))
    ],
    "max pool, rounded up": [
        MaxPool(name="pool", inputs=(INPUT,), kernel=(2, 2), stride=(2, 2), ceil_mode=True)
    ],
    "average": [AveragePool(name="pool", inputs=(INPUT,), kernel=(3, 3), stride=(2, 2), padding=(1, 1))],
    "average, padding not counted": [
        AveragePool(
            name="pool", inputs=(INPUT,), kernel=(3, 3), stride=(2, 2), padding=(1, 1), count_padding=False
        )
    ],
    "average, rounded up": [
        AveragePool(name="pool", inputs=(INPUT,), kernel=(2, 2), stride=(2, 2), ceil_mode=True)
    ],
    "sum": [AveragePool(name="pool", inputs=(INPUT,), kernel=(2, 2), stride=(1, 1), divisor=1)],
    "adaptive": [AdaptiveAveragePool(name="pool", inputs=(INPUT,), size=(3, 2))],
    "adaptive to more": [AdaptiveAveragePool(name="pool", inputs=(INPUT,), size=(9, 8))],
    "clipped": [ReLU(name="pool", inputs=(INPUT,), upper=0.5)],
}


@pytest.mark.parametrize("what", STEPS)
def test_rare_operations_give_the_same_results(what: str) -> None:
    operations = (*STEPS[what], Flatten(name="flat", inputs=("pool",)))
    assert_same(Model(Network(Input((2, 7, 5), (0.4, 0.5), (0.2, 0.3)), operations), {}))


def test_any_number_of_images_is_taken() -> None:
    model = exported(prepared("small_cnn-cifar", "nsconv"))
    for count in (1, 5):
        assert answers(model, pixels(model.network.input.shape, count)).shape == (count, 10)


def test_a_sparse_network_is_a_small_file() -> None:
    model = exported(prepared("resnet18-cifar", "nsconv", Experiment(sparsity=0.9)))
    weights = sum(layer.size for layer in model.network.layers.values())
    content = onnx_model(dense_model(model)).SerializeToString()
    assert len(content) < 0.4 * 4 * weights


def test_a_file_names_what_it_takes_and_gives() -> None:
    session = onnxruntime.InferenceSession(
        onnx_model(dense_model(exported(prepared("small_cnn-cifar", "nsconv")))).SerializeToString(),
        providers=["CPUExecutionProvider"],
    )
    assert [one.name for one in session.get_inputs()] == ["images"]
    assert [one.name for one in session.get_outputs()] == ["logits"]
