"""Instructions in any order: each is correct by itself or uses what is there; none leaves its buffers."""

import pytest

pytest.importorskip("fedmef.native._kernels")

from typing import Any

import numpy as np

from fedmef.native._kernels import Program, Runtime, available
from fedmef.sparsity.arrays import Array

SIDE, IMAGES = 6, 16
WINDOW = (3, 3, 1, 1, 1, 1, 1, 1)
NORMALIZATION = (1.0, 1e-6, False, 1)
FILTERS = {"one": 1, "two": 1, "normalized": 1, "large": 40}

cases = pytest.mark.parametrize(
    ("instructions", "small"), [(name, small) for name in available() for small in (True, False)]
)


class Passes:
    """A runtime with some layers on images of one channel, and a program whose buffers have room for any."""

    def __init__(self, instructions: str, small: bool) -> None:
        scale, shift = np.full(1, 1 / 255, np.float32), np.zeros(1, np.float32)
        self.runtime = Runtime(instructions, 1, (1, SIDE, SIDE), scale, shift)
        generator = np.random.default_rng(0)
        self.weights = {}
        for name, filters in FILTERS.items():
            self.runtime.add_layer(
                name, (1, SIDE, SIDE), (filters, SIDE, SIDE), WINDOW, 1, True, False, False, False,
                NORMALIZATION if name == "normalized" else None, True, True, True,
            )  # fmt: skip
            values = self.weights[name] = generator.normal(size=9 * filters).astype(np.float32)
            mask = np.packbits(np.ones(9 * filters, np.uint8), bitorder="little")
            self.runtime.load_layer(name, values, mask, None, None)
        self.lanes = 1 if small else self.runtime.lanes
        self.pixels = generator.integers(0, 256, (IMAGES, 1, SIDE, SIDE), dtype=np.uint8)

    def run(self, *steps: tuple[str, dict[str, Any]], rate: float = 0.5) -> list[Array]:
        """Buffers 0, 1 and 2 after the steps; 0 holds the images at first. 3 is for bits of one plane."""
        plane = 4 * IMAGES * SIDE * SIDE
        sizes = [plane, plane, plane * max(FILTERS.values()), 128]
        offsets = np.cumsum([0, *sizes])
        program = Program(self.runtime, IMAGES, self.lanes, int(offsets[-1]))
        for offset, size in zip(offsets, sizes, strict=False):
            program.buffer(int(offset), size)
        program.read_images(to=0)
        for kind, arguments in steps:
            getattr(program, kind)(**arguments)
        program.run(self.pixels, None, rate)
        return [program.content(number).view(np.float32) for number in range(3)]

    def values(self, name: str) -> Array:
        return self.runtime.layer_arrays(name)["values"]


def transpose(name: str) -> tuple[str, dict[str, Any]]:
    return "transpose", {"layer": name}


def gradient(name: str) -> tuple[str, dict[str, Any]]:
    """Of the images, as if they were the gradient of a layer's result."""
    return "input_gradient", {"layer": name, "dy": 0, "dx": 1, "accumulate": False}


def descent(name: str) -> list[tuple[str, dict[str, Any]]]:
    return [("weight_gradient", {"layer": name, "dy": 0, "dense": 0}), ("update", {"layer": name})]


def forward(name: str) -> tuple[str, dict[str, Any]]:
    return "convolve", {"layer": name, "x": 0, "y": 2, "accumulate": False}


@cases
def test_an_input_gradient_needs_no_transposed_weights_before_it(instructions: str, small: bool) -> None:
    passes = Passes(instructions, small)
    alone = passes.run(gradient("one"))[1]
    assert np.abs(alone).max() > 0
    np.testing.assert_array_equal(passes.run(transpose("one"), gradient("one"))[1], alone)


@cases
def test_transposed_weights_of_another_layer_are_not_taken(instructions: str, small: bool) -> None:
    passes = Passes(instructions, small)
    one, two = passes.run(gradient("one"))[1], passes.run(gradient("two"))[1]
    assert not np.array_equal(one, two)
    for others in ([transpose("two")], [transpose("large")], [transpose("one"), gradient("two")]):
        np.testing.assert_array_equal(passes.run(*others, gradient("one"))[1], one)


@cases
@pytest.mark.parametrize("name", ["one", "normalized"])
def test_weights_that_were_transposed_before_their_step_are_those_before_it(
    name: str, instructions: str, small: bool
) -> None:
    passes = Passes(instructions, small)
    before = passes.run(forward(name), gradient(name))[1]
    after_step = passes.run(forward(name), transpose(name), *descent(name), gradient(name))[1]
    np.testing.assert_array_equal(after_step, before)
    assert not np.array_equal(passes.values(name), passes.weights[name])


@cases
def test_a_run_takes_no_weights_that_an_earlier_one_has_transposed(instructions: str, small: bool) -> None:
    passes = Passes(instructions, small)
    before = passes.run(gradient("one"))[1]
    passes.run(transpose("one"), *descent("one"))
    after = passes.run(gradient("one"))[1]
    assert not np.array_equal(after, before)
    passes.runtime.load_layer("one", passes.weights["one"], np.array([255, 1], np.uint8), None, None)
    np.testing.assert_array_equal(passes.run(gradient("one"))[1], before)


@cases
def test_an_update_without_a_gradient_takes_what_the_last_layer_left(instructions: str, small: bool) -> None:
    passes = Passes(instructions, small)
    passes.run(("update", {"layer": "large"}))  # nothing yet: the gradient is 0
    np.testing.assert_array_equal(passes.values("large"), passes.weights["large"])
    passes.run(descent("one")[0], ("update", {"layer": "large"}))
    assert np.isfinite(passes.values("large")).all()
    np.testing.assert_array_equal(passes.values("one"), passes.weights["one"])


@cases
def test_a_relu_in_a_layer_is_the_relu_behind_it(instructions: str, small: bool) -> None:
    passes = Passes(instructions, small)
    how = {"upper": 0.4, "at_zero": False}
    layer = {"layer": "one", "x": 0, "y": 1, "accumulate": False}
    count = IMAGES * SIDE * SIDE
    apart = passes.run(("convolve", layer), ("relu", {"x": 1, "count": count, "bits": 3} | how))
    joined = passes.run(("convolve_relu", layer | how | {"bits": 3}))
    without_bits = passes.run(("convolve_relu", layer | how))
    assert 0 < (apart[1] == 0).sum() < count
    assert apart[1].max() == np.float32(0.4)
    np.testing.assert_array_equal(joined[1], apart[1])
    np.testing.assert_array_equal(without_bits[1], apart[1])
    back = ("relu_backward", {"gradient": 1, "bits": 3, "count": count})
    bits = ("convolve_relu", layer | {"y": 2, "bits": 3} | how)
    apart = passes.run(bits, gradient("two"), back)
    joined = passes.run(bits, ("input_gradient_relu", gradient("two")[1] | {"bits": 3}))
    assert (apart[1] == 0).any()
    np.testing.assert_array_equal(joined[1], apart[1])


@cases
def test_buffers_that_overlap_change_results_and_nothing_else(instructions: str, small: bool) -> None:
    """A layer that reads where it writes, and bits that are written over its result."""
    passes = Passes(instructions, small)
    in_place = {"layer": "one", "x": 0, "y": 0, "accumulate": False, "upper": 1.0, "at_zero": True}
    found = passes.run(("convolve_relu", in_place | {"bits": 0}), gradient("one"))
    assert [array.size for array in found] == [IMAGES * SIDE * SIDE * filters for filters in (1, 1, 40)]
