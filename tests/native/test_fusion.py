"""ReLUs that join the layer before them: which ones, and that nothing else changes."""

import pytest

pytest.importorskip("fedmef.native._kernels")

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmef.device.native_backend import NativeBackend
from fedmef.native import lowering
from fedmef.native._kernels import available
from fedmef.native.fusion import fuse
from fedmef.native.plan import Instruction
from fedmef.sparsity.model import Model
from tests.native.random_networks import CLASSES, models

CONVOLVE = Instruction("convolve", {"x": 0, "y": 1}, {"layer": "one", "accumulate": False})
RELU = Instruction("relu", {"x": 1, "bits": 2}, {"count": 64, "upper": 6.0, "at_zero": False})
GRADIENT = Instruction("input_gradient", {"dy": 1, "dx": 0}, {"layer": "two", "accumulate": True})
UPDATE = Instruction("update", {}, {"layer": "two"})
BACKWARD = Instruction("relu_backward", {"gradient": 0, "bits": 3}, {"count": 64})


def test_a_relu_joins_the_layer_that_wrote_its_buffer() -> None:
    options = {"layer": "one", "accumulate": False, "upper": 6.0, "at_zero": False}
    assert fuse([CONVOLVE, RELU]) == [Instruction("convolve_relu", {"x": 0, "y": 1, "bits": 2}, options)]


def test_its_backward_step_joins_across_an_update() -> None:
    options = {"layer": "two", "accumulate": True}
    joined = Instruction("input_gradient_relu", {"dy": 1, "dx": 0, "bits": 3}, options)
    assert fuse([GRADIENT, UPDATE, BACKWARD]) == [joined, UPDATE]


def test_another_buffer_or_an_instruction_between_keeps_them_apart() -> None:
    elsewhere = Instruction("relu", {"x": 0}, RELU.options)
    prune = Instruction("prune", {"x": 1, "cache": 4})
    for program in (
        [CONVOLVE, elsewhere],
        [CONVOLVE, prune, RELU],
        [RELU],
        [GRADIENT, RELU],
        [UPDATE, BACKWARD],
    ):
        assert fuse(program) == program


@settings(max_examples=60, deadline=None)
@given(
    model=models(),
    count=st.integers(1, 20),
    seed=st.integers(0, 99),
    instructions=st.sampled_from(available()),
)
def test_fused_programs_compute_the_same_bits(model: Model, count: int, seed: int, instructions: str) -> None:
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (count, *model.network.input.shape), dtype=np.uint8)
    labels = generator.integers(0, CLASSES, count)

    def trained() -> tuple[list[float], dict[str, np.ndarray], np.ndarray]:
        backend = NativeBackend(model.network, instructions=instructions)
        backend.load(model.state)
        losses = [backend.step(images, labels, 0.1).loss for _ in range(2)]
        return losses, backend.state(), backend.predict(images)

    losses, state, logits = trained()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lowering, "fuse", list)
        plain_losses, plain_state, plain_logits = trained()
    np.testing.assert_array_equal(losses, plain_losses)
    np.testing.assert_array_equal(logits, plain_logits)
    for name, array in state.items():
        np.testing.assert_array_equal(array, plain_state[name])
