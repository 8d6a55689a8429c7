"""The native backend computes what PyTorch does, for random small networks."""

import pytest

pytest.importorskip("fedmef.native._kernels")

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmef.device.native_backend import NativeBackend, unsupported
from fedmef.native._kernels import available
from fedmef.nn.backend import TorchBackend
from fedmef.sparsity.model import Model
from tests.native.random_networks import CLASSES, models
from tests.native.reference import assert_step_agrees

BATCHES = st.sampled_from([1, 2, 7, 9, 16, 33])


def batch_for(model: Model, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (count, *model.network.input.shape), dtype=np.uint8)
    return images, generator.integers(0, CLASSES, count)


@settings(deadline=None, max_examples=150, derandomize=True)
@given(model=models(), count=BATCHES, seed=st.integers(0, 99), instructions=st.sampled_from(available()))
def test_a_step_agrees_with_pytorch(model: Model, count: int, seed: int, instructions: str) -> None:
    assert unsupported(model.network) is None
    backend = NativeBackend(model.network, instructions=instructions, inspect=True)
    assert_step_agrees(backend, model.state, *batch_for(model, count, seed), noise=10)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(model=models(), count=BATCHES, seed=st.integers(0, 99))
def test_predictions_agree_with_pytorch(model: Model, count: int, seed: int) -> None:
    images, _ = batch_for(model, count, seed)
    native, reference = NativeBackend(model.network), TorchBackend(model.network)
    for backend in (native, reference):
        backend.load(model.state)
    expected = reference.predict(images)
    np.testing.assert_allclose(
        native.predict(images), expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max()
    )


@settings(deadline=None, max_examples=40, derandomize=True)
@given(model=models(), count=BATCHES, seed=st.integers(0, 99))
def test_a_state_comes_back_as_it_was(model: Model, count: int, seed: int) -> None:
    backend = NativeBackend(model.network)
    backend.load(model.state)
    backend.predict(batch_for(model, count, seed)[0])
    for name, array in backend.state().items():
        assert array.dtype == model.state[name].dtype
        np.testing.assert_array_equal(array, model.state[name])
