"""Results of many megabytes, which are written past the caches, and tiles that cover a whole plane."""

import pytest

pytest.importorskip("fedmef.native._kernels")

import numpy as np

from fedmef.device.native_backend import NativeBackend
from fedmef.native._kernels import available
from fedmef.sparsity.network import INPUT, Network
from fedmef.sparsity.operations import Add, Cache, Operation, ReLU
from tests.native.reference import assert_step_agrees
from tests.sparsity.networks import chain, convolution, images, pooled, random_model


def batch(network: Network, count: int = 16) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (count, *network.input.shape), dtype=np.uint8)
    return pixels, generator.integers(0, network.classes, count)


def large(side: int) -> Network:
    """Its planes have more than 12 MB: ReLUs, a sum, a stride of 2, a depthwise layer, a dense one of 13."""
    cache = Cache(0.5)
    return chain(
        convolution("stem", INPUT, (13, 1, 3, 3), padding=(1, 1), bias=True),
        ReLU(name="relu0", inputs=("stem",)),
        convolution("first", "relu0", (13, 13, 3, 3), padding=(1, 1), bias=True, sparse=True, cache=cache),
        ReLU(name="relu1", inputs=("first",)),
        convolution("second", "relu1", (13, 13, 3, 3), padding=(1, 1), sparse=True, cache=cache),
        Add(name="sum", inputs=("second", "relu0")),
        convolution("own", "sum", (13, 1, 3, 3), padding=(1, 1), groups=13),
        convolution("half", "own", (13, 13, 3, 3), padding=(1, 1), stride=(2, 2), sparse=True, cache=cache),
        *pooled("half"),
        of=images(1, side, side),
    )


@pytest.mark.parametrize("instructions", available())
@pytest.mark.parametrize("side", [124, 126])  # the last tile of a row is whole, or cut
def test_large_results_agree_and_do_not_depend_on_the_number_of_threads(side: int, instructions: str) -> None:
    model = random_model(large(side), 0.5)
    pixels, labels = batch(model.network)
    states = []
    for threads in (1, 2):
        backend = NativeBackend(model.network, threads, instructions, inspect=True)
        assert_step_agrees(backend, model.state, pixels, labels)
        states.append(backend.state())
    for name, value in states[0].items():
        np.testing.assert_array_equal(value, states[1][name], name)


@pytest.mark.parametrize("instructions", available())
@pytest.mark.parametrize("plane", [(4, 4), (3, 4), (4, 3), (2, 2), (1, 4), (4, 1), (1, 1)])
@pytest.mark.parametrize("groups", [1, 2, 173])  # the last is depthwise
def test_tiles_that_cover_a_whole_plane_agree(groups: int, plane: tuple[int, int], instructions: str) -> None:
    channels = 174 if groups == 2 else 173  # several blocks of channels, of which the last has fewer
    shape = (channels, channels // groups, 3, 3)
    sparse = {"sparse": True, "cache": Cache(0.5)} if groups < channels else {}
    network = chain(
        convolution("stem", INPUT, (channels, 2, 3, 3), padding=(1, 1)),  # so that buffers have been used
        convolution("conv", "stem", shape, padding=(1, 1), groups=groups, **sparse),
        *pooled("conv"),
        of=images(2, *plane),
    )
    model = random_model(network, 0.2)
    backend = NativeBackend(model.network, instructions=instructions, inspect=True)
    assert_step_agrees(backend, model.state, *batch(model.network))
    if sparse:
        np.testing.assert_array_equal(backend.state()["conv.mask"], model.state["conv.mask"])


@pytest.mark.parametrize("instructions", available())
@pytest.mark.parametrize("filters", [1, 5, 6, 7, 12, 13])
def test_dense_layers_of_any_number_of_filters_agree(filters: int, instructions: str) -> None:
    steps: tuple[Operation, ...] = (
        convolution("stem", INPUT, (filters, 3, 3, 3), padding=(1, 1), bias=True),
        ReLU(name="relu", inputs=("stem",)),
        convolution("next", "relu", (filters, filters, 3, 3), padding=(1, 1), bias=True),
    )
    model = random_model(chain(*steps, *pooled("next")), 1.0)
    backend = NativeBackend(model.network, instructions=instructions, inspect=True)
    assert_step_agrees(backend, model.state, *batch(model.network))
