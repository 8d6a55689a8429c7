"""Shapes and arrays of every operation: by hand, and as PyTorch's own modules have them."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedmef.errors import NetworkError
from fedmef.sparsity.network import INPUT
from fedmef.sparsity.operations import (
    OPERATIONS,
    AdaptiveAveragePool,
    Add,
    ArraySpec,
    AveragePool,
    BatchNorm,
    Cache,
    Concatenate,
    Convolution,
    Flatten,
    Layer,
    LayerNorm,
    Linear,
    MaxPool,
    Normalization,
    Opaque,
    Operation,
    Pair,
    ReLU,
    Scale,
    Shape,
)
from tests.sparsity.networks import convolution, network_of_everything


def linear(shape: Pair, **rest: Any) -> Linear:
    return Linear(name="fc", inputs=(INPUT,), module="fc", shape=shape, **rest)


def max_pool(kernel: Pair, stride: Pair, padding: Pair = (0, 0), **rest: Any) -> MaxPool:
    return MaxPool(name="pool", inputs=(INPUT,), kernel=kernel, stride=stride, padding=padding, **rest)


def average_pool(kernel: Pair, stride: Pair, padding: Pair = (0, 0), **rest: Any) -> AveragePool:
    return AveragePool(name="pool", inputs=(INPUT,), kernel=kernel, stride=stride, padding=padding, **rest)


def adaptive(size: Pair) -> AdaptiveAveragePool:
    return AdaptiveAveragePool(name="pool", inputs=(INPUT,), size=size)


ADD = Add(name="sum", inputs=("a", "b"))
CONCATENATE = Concatenate(name="both", inputs=("a", "b"))
FLATTEN = Flatten(name="flat", inputs=("a",))
RELU = ReLU(name="relu", inputs=("a",))
NORM = BatchNorm(name="norm", inputs=("a",), module="norm", channels=4)
EVEN = LayerNorm(name="even", inputs=("a",))
HALF = Scale(name="half", inputs=("a",), factor=0.5)
OPAQUE = Opaque(name="strange", inputs=("a",), description="GELU", shape=(7,))


@pytest.mark.parametrize(
    ("operation", "inputs", "output"),
    [
        (convolution("c", INPUT, (16, 3, 3, 3)), [(3, 32, 32)], (16, 30, 30)),
        (convolution("c", INPUT, (16, 3, 3, 3), padding=(1, 1)), [(3, 32, 32)], (16, 32, 32)),
        (convolution("c", INPUT, (16, 3, 3, 3), padding=(1, 1), stride=(2, 2)), [(3, 32, 32)], (16, 16, 16)),
        (
            convolution("c", INPUT, (16, 3, 7, 7), padding=(3, 3), stride=(2, 2)),
            [(3, 225, 224)],
            (16, 113, 112),
        ),
        (convolution("c", INPUT, (16, 3, 3, 3), dilation=(2, 1)), [(3, 8, 8)], (16, 4, 6)),
        (convolution("c", INPUT, (6, 1, 1, 1), groups=3), [(3, 5, 4)], (6, 5, 4)),
        (linear((10, 64)), [(64,)], (10,)),
        (max_pool((2, 2), (2, 2)), [(4, 9, 8)], (4, 4, 4)),
        (max_pool((2, 2), (2, 2), ceil_mode=True), [(4, 9, 8)], (4, 5, 4)),
        (max_pool((3, 3), (2, 2), (1, 1)), [(4, 8, 8)], (4, 4, 4)),
        # Rounded up there would be 5 windows of 1 in 7 with steps of 2, padded by 0, and the last one begins
        # at 8: outside.
        (max_pool((1, 1), (2, 2), ceil_mode=True), [(4, 7, 8)], (4, 4, 4)),
        (average_pool((4, 2), (4, 2)), [(4, 8, 8)], (4, 2, 4)),
        (adaptive((1, 1)), [(4, 9, 8)], (4, 1, 1)),
        (adaptive((5, 3)), [(4, 2, 2)], (4, 5, 3)),
        (NORM, [(4, 9, 8)], (4, 9, 8)),
        (NORM, [(4,)], (4,)),
        (EVEN, [(4, 9, 8)], (4, 9, 8)),
        (EVEN, [(4,)], (4,)),
        (HALF, [(4, 9, 8)], (4, 9, 8)),
        (RELU, [(4, 9, 8)], (4, 9, 8)),
        (ADD, [(4, 9, 8), (4, 9, 8)], (4, 9, 8)),
        (CONCATENATE, [(4, 9, 8), (3, 9, 8)], (7, 9, 8)),
        (CONCATENATE, [(4,), (3,), (2,)], (9,)),
        (FLATTEN, [(4, 9, 8)], (288,)),
        (OPAQUE, [(4, 9, 8), (1,)], (7,)),
    ],
)
def test_shapes_by_hand(operation: Operation, inputs: list[Shape], output: Shape) -> None:
    assert operation.output(*inputs) == output


@pytest.mark.parametrize(
    ("operation", "inputs", "reason"),
    [
        (convolution("c", INPUT, (16, 3, 3, 3)), [(4, 32, 32)], "convolution 'c': 4 channels, 1 groups"),
        (convolution("c", INPUT, (16, 3, 3, 3)), [(3,)], "one input of 3 dimensions"),
        (convolution("c", INPUT, (16, 3, 3, 3)), [(3, 4, 4), (3, 4, 4)], "one input of 3 dimensions"),
        (convolution("c", INPUT, (16, 3, 3, 3)), [], "one input of 3 dimensions"),
        (convolution("c", INPUT, (16, 3, 3, 3)), [(3, 2, 32)], r"\[2, 32\] is smaller than its window"),
        (convolution("c", INPUT, (16, 3, 3, 3), dilation=(1, 9)), [(3, 9, 9)], "smaller than its window"),
        (convolution("c", INPUT, (16, 3, 3, 3), stride=(0, 1)), [(3, 9, 9)], "must be at least 1"),
        (convolution("c", INPUT, (16, 3, 3, 3), dilation=(0, 1)), [(3, 9, 9)], "must be at least 1"),
        (convolution("c", INPUT, (16, 3, 0, 3)), [(3, 9, 9)], "must be at least 1"),
        (convolution("c", INPUT, (4, 1, 3, 3), groups=3), [(3, 9, 9)], "4 |3 groups"),
        (convolution("c", INPUT, (4, 1, 3, 3), groups=0), [(3, 9, 9)], "0 groups"),
        (linear((10, 64)), [(63,)], "linear 'fc': it takes 64 features"),
        (linear((10, 64)), [(64, 1, 1)], "one input of 1 dimensions"),
        (max_pool((3, 3), (2, 2)), [(4, 2, 9)], "smaller than its window"),
        (max_pool((2, 2), (0, 2)), [(4, 9, 9)], "must be at least 1"),
        (max_pool((2, 2), (2, 2), (2, 0)), [(4, 9, 9)], "padded by more than half"),
        (average_pool((3, 3), (2, 2), (0, 2)), [(4, 9, 9)], "padded by more than half"),
        (average_pool((3, 3), (2, 2)), [(9,)], "one input of 3 dimensions"),
        (
            AveragePool(name="p", inputs=(), kernel=(2, 2), stride=(2, 2), divisor=0),
            [(4, 9, 9)],
            "divides by 0",
        ),
        (adaptive((1, 1)), [(9,)], "one input of 3 dimensions"),
        (NORM, [(5, 9, 8)], "batch_norm 'norm': it takes 4 channels"),
        (NORM, [()], "4 channels"),
        (NORM, [(4,), (4,)], "4 channels"),
        (EVEN, [(4,), (4,)], "layer_norm 'even': it takes one input"),
        (EVEN, [], "one input"),
        (HALF, [(4,), (4,)], "scale 'half': it takes one input"),
        (replace(EVEN, epsilon=0.0), [(4,)], "positive epsilon"),
        (replace(EVEN, epsilon=-1e-5), [(4,)], "positive epsilon"),
        (replace(EVEN, epsilon=math.inf), [(4,)], "positive epsilon"),
        (replace(HALF, factor=0.0), [(4,)], "positive factor"),
        (replace(HALF, factor=-1.0), [(4,)], "positive factor"),
        (replace(HALF, factor=math.nan), [(4,)], "positive factor"),
        (RELU, [(4,), (4,)], "one input"),
        (FLATTEN, [], "one input"),
        (ADD, [(4, 9, 8), (4, 8, 9)], "two inputs of one shape"),
        (ADD, [(4, 9, 8)], "two inputs"),
        (ADD, [(4,), (4,), (4,)], "two inputs"),
        (CONCATENATE, [(4, 9, 8), (4, 8, 9)], "differ in channels only"),
        (CONCATENATE, [(4, 9, 8), (4,)], "differ in channels only"),
        (CONCATENATE, [()], "differ in channels only"),
        (CONCATENATE, [], "differ in channels only"),
    ],
)
def test_inputs_that_do_not_fit_are_named(operation: Operation, inputs: list[Shape], reason: str) -> None:
    with pytest.raises(NetworkError, match=reason):
        operation.output(*inputs)


def pytorchs(module: nn.Module, shape: Shape) -> Shape | None:
    """What PyTorch makes of one image, or None when it refuses."""
    try:
        return tuple(module(torch.zeros(1, *shape)).shape[1:])
    except RuntimeError:
        return None


def ours(operation: Operation, shape: Shape) -> Shape | None:
    try:
        output = operation.output(shape)
    except NetworkError:
        return None
    return output if min(output) > 0 else None


pairs = st.tuples(st.integers(1, 4), st.integers(1, 4))
paddings = st.tuples(st.integers(0, 3), st.integers(0, 3))
shapes = st.tuples(st.integers(1, 6), st.integers(1, 9), st.integers(1, 9))


@given(
    shape=shapes,
    groups=st.integers(1, 3),
    out=st.integers(1, 6),
    kernel=pairs,
    stride=pairs,
    padding=paddings,
    dilation=pairs,
)
@settings(deadline=None, max_examples=200)
def test_a_convolution_takes_and_gives_what_pytorchs_does(
    shape: Shape, groups: int, out: int, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> None:
    channels, filters = groups * 2, groups * out
    module = nn.Conv2d(channels, filters, kernel, stride, padding, dilation, groups)
    operation = Convolution(
        name="c",
        inputs=(INPUT,),
        module="c",
        shape=(filters, 2, *kernel),
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        bias=True,
    )
    assert ours(operation, shape) == pytorchs(module, shape)


@given(shape=shapes, kernel=pairs, stride=pairs, padding=paddings, dilation=pairs, ceil_mode=st.booleans())
@settings(deadline=None, max_examples=400)
def test_a_max_pool_takes_and_gives_what_pytorchs_does(
    shape: Shape, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, ceil_mode: bool
) -> None:
    module = nn.MaxPool2d(kernel, stride, padding, dilation, ceil_mode=ceil_mode)
    operation = MaxPool(
        name="p",
        inputs=(INPUT,),
        kernel=kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        ceil_mode=ceil_mode,
    )
    assert ours(operation, shape) == pytorchs(module, shape)


@given(shape=shapes, kernel=pairs, stride=pairs, padding=paddings, ceil_mode=st.booleans())
@settings(deadline=None, max_examples=400)
def test_an_average_pool_takes_and_gives_what_pytorchs_does(
    shape: Shape, kernel: Pair, stride: Pair, padding: Pair, ceil_mode: bool
) -> None:
    module = nn.AvgPool2d(kernel, stride, padding, ceil_mode)
    operation = average_pool(kernel, stride, padding, ceil_mode=ceil_mode)
    assert ours(operation, shape) == pytorchs(module, shape)


@given(shape=shapes, size=pairs)
@settings(deadline=None)
def test_an_adaptive_pool_gives_what_pytorchs_does(shape: Shape, size: Pair) -> None:
    assert ours(adaptive(size), shape) == pytorchs(nn.AdaptiveAvgPool2d(size), shape)


def stored(module: nn.Module) -> dict[str, tuple[Shape, str]]:
    """What a PyTorch module's state is made of."""
    return {
        f"m.{name}": (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        for name, tensor in module.state_dict().items()
    }


def described(operation: Operation) -> dict[str, tuple[Shape | None, str]]:
    return {name: (spec.shape, spec.dtype) for name, spec in operation.arrays().items()}


@pytest.mark.parametrize(
    ("operation", "module"),
    [
        (
            convolution("m", INPUT, (4, 2, 3, 5), groups=2, bias=True),
            lambda: nn.Conv2d(4, 4, (3, 5), groups=2),
        ),
        (convolution("m", INPUT, (4, 2, 3, 5)), lambda: nn.Conv2d(2, 4, (3, 5), bias=False)),
        (
            Linear(name="m", inputs=(), module="m", shape=(3, 7), bias=True, dtype="float64"),
            lambda: nn.Linear(7, 3, dtype=torch.float64),
        ),
        (BatchNorm(name="m", inputs=(), module="m", channels=4), lambda: nn.BatchNorm2d(4)),
        (
            BatchNorm(name="m", inputs=(), module="m", channels=4, affine=False),
            lambda: nn.BatchNorm2d(4, affine=False),
        ),
        (max_pool((2, 2), (2, 2)), lambda: nn.MaxPool2d(2)),
        (RELU, nn.ReLU),
        (EVEN, lambda: nn.LayerNorm(4, elementwise_affine=False)),
        (HALF, nn.Identity),
    ],
)
def test_arrays_have_pytorchs_names_shapes_and_types(
    operation: Operation, module: Callable[[], nn.Module]
) -> None:
    assert described(operation) == stored(module())


def test_a_sparse_layer_has_values_of_any_number_and_a_packed_mask() -> None:
    layer = convolution("m", INPUT, (4, 2, 3, 3), sparse=True, gain=True, bias=True)
    assert layer.arrays() == {
        "m.values": ArraySpec(None, "float32", "weight"),
        "m.mask": ArraySpec((9,), "uint8", "mask"),  # 72 bits
        "m.gain": ArraySpec((4,), "float32", "weight"),
        "m.bias": ArraySpec((4,), "float32", "weight"),
    }
    assert linear((3, 3), sparse=True).arrays()["fc.mask"].shape == (2,)  # 9 bits


@pytest.mark.parametrize(
    "own", [{"gain": True}, {"normalization": Normalization()}, {"cache": Cache(0.5)}, {"swat": 0.5}]
)
def test_only_a_sparse_layer_has_what_only_sparse_layers_do(own: dict[str, Any]) -> None:
    """A dense one would be built without it."""
    convolution("c", INPUT, (4, 2, 3, 3), sparse=True, **own)
    with pytest.raises(NetworkError, match="convolution 'c': only a sparse layer has"):
        convolution("c", INPUT, (4, 2, 3, 3), **own)


@pytest.mark.parametrize("swat", [-0.1, 1.0, 2.0, math.nan])
def test_swat_is_a_share(swat: float) -> None:
    with pytest.raises(NetworkError, match="convolution 'c': swat is a share"):
        convolution("c", INPUT, (4, 2, 3, 3), sparse=True, swat=swat)


def test_a_linear_layer_has_no_swat() -> None:
    with pytest.raises(NetworkError, match="linear 'fc': swat is a share, and of a convolution"):
        linear((3, 7), sparse=True, swat=0.5)


@pytest.mark.parametrize(
    "wrong", [{"epsilon": -1e-5}, {"momentum": -0.1}, {"momentum": 1.1}, {"momentum": math.nan}]
)
def test_constants_that_no_batchnorm_has_are_named(wrong: dict[str, Any]) -> None:
    replace(NORM, epsilon=0.0, momentum=0.0)
    replace(NORM, momentum=1.0)
    with pytest.raises(NetworkError, match=r"batch_norm 'norm': an epsilon of .* and a momentum of"):
        replace(NORM, **wrong)


def test_roles_tell_what_is_trained_and_what_is_averaged() -> None:
    assert {name: spec.role for name, spec in NORM.arrays().items()} == {
        "norm.weight": "weight",
        "norm.bias": "weight",
        "norm.running_mean": "statistic",
        "norm.running_var": "statistic",
        "norm.num_batches_tracked": "counter",
    }


def test_an_opaque_operation_has_the_arrays_that_it_says() -> None:
    own = {"strange.scale": ArraySpec((), "float32", "weight")}
    strange = Opaque(name="strange", inputs=("a",), description="mine", shape=(7,), own=own)
    assert strange.arrays() == own


@pytest.mark.parametrize(
    ("layer", "filters", "filter_size"),
    [(convolution("c", INPUT, (16, 3, 5, 7)), 16, 105), (linear((10, 64)), 10, 64)],
)
def test_a_weight_is_a_matrix_with_a_row_for_each_filter(
    layer: Layer, filters: int, filter_size: int
) -> None:
    assert (layer.filters, layer.filter_size) == (filters, filter_size)
    assert layer.size == filters * filter_size == math.prod(layer.weight_shape)


def test_every_kind_has_its_own_name_and_is_in_the_table() -> None:
    assert OPERATIONS.keys() == {kind.kind for kind in OPERATIONS.values()}
    assert {type(operation) for operation in network_of_everything().operations} == set(OPERATIONS.values())
