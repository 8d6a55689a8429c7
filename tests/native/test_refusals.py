"""What does not fit is refused when it is added, before anything runs: the extension trusts nobody."""

import pytest

pytest.importorskip("fedmef.native._kernels")

from typing import Any

import numpy as np

from fedmef.native._kernels import Program, Runtime, available

ONE = (1, 1, 1, 1, 0, 0, 1, 1)  # a window of one pixel
THREE = (3, 3, 1, 1, 1, 1, 1, 1)
FLOATS = 4 * 8 * 8 * 8  # bytes of eight images of [8, 8]


def runtime(**changes: Any) -> Runtime:
    """One convolution of one channel on images of 8 x 8."""
    made = Runtime(available()[-1], 1, (1, 8, 8), np.ones(1, np.float32), np.zeros(1, np.float32))
    settings: dict[str, Any] = {
        "name": "conv",
        "input": (1, 8, 8),
        "output": (1, 8, 8),
        "window": THREE,
        "groups": 1,
        "sparse": True,
        "linear": False,
        "bias": False,
        "gain": False,
        "normalization": None,
        "train_values": True,
        "train_gain": True,
        "train_bias": True,
    }
    made.add_layer(**settings | changes)
    made.add_batch_norm("norm", 1, 1e-5, 0.1, True, True, True)
    return made


def program(made: Runtime, *sizes: int, images: int = 8) -> Program:
    lanes, offset = 1, 0
    arena = sum(-(-size // 64) * 64 for size in sizes)
    built = Program(made, images, lanes, arena)
    for size in sizes:
        built.buffer(offset, size)
        offset += -(-size // 64) * 64
    return built


@pytest.mark.parametrize(
    "changes",
    [
        {"output": (1, 8, 7)},
        {"output": (1, 2**30, 2**30)},
        {"input": (0, 8, 8)},
        {"input": (-1, 8, 8)},
        {"groups": 2},
        {"groups": 0},
        {"window": (3, 3, 0, 1, 1, 1, 1, 1)},
        {"window": (3, 3, 1, 1, -1, 1, 1, 1)},
        {"window": (3, 3, 1, 1, 1, 1, 2**30, 1)},
        {"window": (1, 1, 2**20, 2**20, 0, 0, 1, 1), "output": (1, 1, 1)},
        {"window": (3, 3, 1, 1, 500, 500, 500, 500)},
        {"linear": True},
        {"sparse": False, "gain": True},
        {"normalization": (1.0, 0.0, False, 1)},
        {"normalization": (1.0, 1e-6, True, 0)},
        {"input": (2**24, 1, 1), "output": (2**24, 1, 1), "window": ONE},
    ],
)
def test_a_layer_that_makes_no_sense(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a "):
        runtime(**changes)


@pytest.mark.parametrize(
    ("values", "mask"),
    [
        (np.ones(2, np.float32), np.array([1, 0], np.uint8)),
        (np.ones(1, np.float32), np.array([1], np.uint8)),
        (np.ones(1, np.float32), np.array([1, 0, 0], np.uint8)),
        (np.ones(1, np.float32), np.array([0, 2], np.uint8)),  # a bit beyond the nine weights
        (np.ones(9, np.float32), None),
    ],
)
def test_values_and_a_mask_that_do_not_belong_together(values: Any, mask: Any) -> None:
    with pytest.raises(ValueError, match="mask"):
        runtime().load_layer("conv", values, mask, None, None)


def test_arrays_of_another_type_are_not_converted() -> None:
    doubles: Any = np.ones(1)
    with pytest.raises(TypeError):
        runtime().load_layer("conv", doubles, np.array([1, 0], np.uint8), None, None)


@pytest.mark.parametrize("gain", [None, np.ones(2, np.float32)])
def test_a_gain_of_another_size(gain: Any) -> None:
    with pytest.raises(ValueError, match="gain"):
        runtime(gain=True).load_layer("conv", np.ones(1, np.float32), np.array([1, 0], np.uint8), gain, None)


@pytest.mark.parametrize(("offset", "size"), [(0, 257), (256, 1), (2**63, 2**63), (32, 8)])
def test_a_buffer_outside_of_the_arena(offset: int, size: int) -> None:
    with pytest.raises(ValueError, match=r"buffer|size"):
        Program(runtime(), 8, 1, 256).buffer(offset, size)


@pytest.mark.parametrize(("images", "lanes"), [(0, 1), (-1, 1), (8, 3), (8, 0), (2**30, 1)])
def test_a_layout_that_the_kernels_do_not_have(images: int, lanes: int) -> None:
    with pytest.raises(ValueError, match=r"image|lanes"):
        Program(runtime(), images, lanes, 0)


COPY = {
    "to_offset": 0,
    "to_stride": 64,
    "source_offset": 0,
    "source_stride": 64,
    "size": 64,
    "accumulate": False,
}
POOL = {
    "pooling": "maximum",
    "input": (1, 8, 8),
    "output": (1, 4, 4),
    "window": (2, 2, 2, 2, 0, 0, 1, 1),
    "count_padding": True,
    "divisor": 0,
}


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("read_images", {"to": 1}),
        ("read_images", {"to": 9}),
        ("read_images", {"to": -1}),
        ("convolve", {"layer": "conv", "x": 0, "y": 1, "accumulate": False}),
        ("convolve", {"layer": "other", "x": 0, "y": 0, "accumulate": False}),
        (
            "convolve_relu",
            {"layer": "conv", "x": 0, "y": 0, "bits": 1, "accumulate": False, "upper": 1.0, "at_zero": False},
        ),
        (
            "convolve_relu",
            {"layer": "conv", "x": 0, "y": 0, "accumulate": False, "upper": float("nan"), "at_zero": False},
        ),
        (
            "convolve_relu",
            {"layer": "conv", "x": 0, "y": 1, "accumulate": False, "upper": 1.0, "at_zero": False},
        ),
        ("transpose", {"layer": "other"}),
        ("transpose", {"layer": "norm"}),
        ("input_gradient", {"layer": "conv", "dy": 1, "dx": 0, "accumulate": False}),
        ("input_gradient_relu", {"layer": "conv", "dy": 0, "dx": 1, "bits": 0, "accumulate": False}),
        ("input_gradient_relu", {"layer": "other", "dy": 0, "dx": 0, "bits": 0, "accumulate": False}),
        ("input_gradient_relu", {"layer": "conv", "dy": 0, "dx": 0, "bits": 1, "accumulate": False}),
        ("input_gradient_relu", {"layer": "conv", "dy": 0, "dx": 0, "bits": -1, "accumulate": False}),
        ("weight_gradient", {"layer": "conv", "dy": 0}),
        ("weight_gradient", {"layer": "conv", "dy": 0, "dense": 1}),
        ("weight_gradient", {"layer": "conv", "dy": 0, "cache": 1}),
        ("score", {"layer": "conv", "dy": 0, "cache": 0}),
        ("prune", {"x": 0, "cache": 1, "shape": (1, 8, 8), "keep": 100, "dtype": "fp32"}),
        ("prune", {"x": 0, "cache": 0, "shape": (1, 8, 8), "keep": 513, "dtype": "fp16"}),
        ("prune", {"x": 0, "cache": 0, "shape": (1, 8, 8), "keep": 1, "dtype": "fp8"}),
        ("relu", {"x": 1, "count": 512, "upper": 1.0, "at_zero": False}),
        ("relu", {"x": 0, "bits": 1, "count": 512, "upper": 1.0, "at_zero": False}),
        ("relu", {"x": 0, "count": 2**63, "upper": 1.0, "at_zero": False}),
        ("relu_backward", {"gradient": 0, "bits": 1, "count": 512}),
        ("add", {"to": 0, "source": 1}),
        ("copy", {"to": 1, "source": 0, **COPY}),
        ("copy", {"to": 0, "source": 1, **COPY}),
        ("copy", {"to": 0, "source": 0, **COPY, "to_stride": 2**62}),
        ("copy", {"to": 0, "source": 0, **COPY, "source_offset": 2**64 - 1}),
        ("pool", {"x": 0, "y": 1, **POOL}),
        ("pool", {"x": 0, "y": 0, "places": 1, **POOL}),
        ("pool", {"x": 0, "y": 0, **POOL, "window": (2, 2, 9, 9, 0, 0, 1, 1)}),
        ("pool", {"x": 0, "y": 0, **POOL, "window": (2, 2, 2, 2, 2, 2, 1, 1)}),
        ("pool", {"x": 0, "y": 0, **POOL, "window": (17, 17, 2, 2, 0, 0, 1, 1)}),
        ("pool_backward", {"dy": 0, "dx": 0, "places": 0, "accumulate": False, **POOL}),
        ("batch_norm", {"layer": "norm", "x": 0, "y": 0, "statistics": 1, "shape": (2, 8, 8), "track": True}),
        ("batch_norm", {"layer": "norm", "x": 0, "y": 1, "statistics": 1, "shape": (1, 8, 8), "track": True}),
        ("layer_norm", {"x": 1, "factors": 1, "size": 64, "epsilon": 1e-10}),
        ("cross_entropy", {"logits": 0, "classes": 0}),
        ("cross_entropy", {"logits": 1, "classes": 3}),
    ],
)
def test_an_instruction_whose_buffers_are_too_small(kind: str, arguments: dict[str, Any]) -> None:
    built = program(runtime(), FLOATS, 16)
    with pytest.raises(ValueError, match=r"."):
        getattr(built, kind)(**arguments)


def test_a_program_without_a_state_does_not_run() -> None:
    built = program(runtime(), FLOATS)
    built.read_images(to=0)
    with pytest.raises(ValueError, match="state"):
        built.run(np.zeros((8, 1, 8, 8), np.uint8), None)


@pytest.mark.parametrize(
    ("shape", "labels"),
    [
        ((7, 1, 8, 8), [0] * 8),
        ((8, 1, 8, 7), [0] * 8),
        ((8, 1, 8, 8), None),
        ((8, 1, 8, 8), [0] * 7),
        ((8, 1, 8, 8), [0] * 7 + [64]),
        ((8, 1, 8, 8), [-1] + [0] * 7),
    ],
)
def test_a_batch_that_does_not_fit(shape: tuple[int, ...], labels: list[int] | None) -> None:
    made = runtime()
    made.load_layer("conv", np.ones(1, np.float32), np.array([1, 0], np.uint8), None, None)
    one = np.ones(1, np.float32)
    made.load_batch_norm("norm", one, one, 0, one, one)
    built = program(made, FLOATS)
    built.read_images(to=0)
    built.cross_entropy(logits=0, classes=64)
    classes = None if labels is None else np.array(labels)
    with pytest.raises(ValueError, match=r"batch|label"):
        built.run(np.zeros(shape, np.uint8), classes)
    assert built.run(np.zeros((8, 1, 8, 8), np.uint8), np.zeros(8, np.int64)) == pytest.approx(np.log(64))


@pytest.mark.parametrize("places", [[-1], [1], [2**40]])
def test_a_marked_weight_that_is_not_there(places: list[int]) -> None:
    made = runtime()
    made.load_layer("conv", np.ones(1, np.float32), np.array([1, 0], np.uint8), None, None)
    with pytest.raises(ValueError, match="marked"):
        made.mark("conv", np.array(places))


def test_an_instruction_set_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="instruction set"):
        Runtime("z80", 1, (1, 8, 8), np.ones(1, np.float32), np.zeros(1, np.float32))
    with pytest.raises(ValueError, match="threads"):
        Runtime("", 0, (1, 8, 8), np.ones(1, np.float32), np.zeros(1, np.float32))
