"""A model as an ONNX file: it takes images of uint8 as they are, any number of them, and answers logits.

The network as data is translated operation by operation; no PyTorch runs. Sparse layers are written as sparse
tensors, so the file stays small; whoever loads it makes them dense.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from fedmef.errors import UserError
from fedmef.sparsity.arrays import Array
from fedmef.sparsity.model import Model
from fedmef.sparsity.network import INPUT, Network
from fedmef.sparsity.operations import (
    AdaptiveAveragePool,
    Add,
    AveragePool,
    BatchNorm,
    Concatenate,
    Convolution,
    Flatten,
    LayerNorm,
    Linear,
    MaxPool,
    Operation,
    ReLU,
    Scale,
)

OPSET = 17
SMALLEST = 1e-30  # of `fedmef.nn.features`
SPARSE_BELOW = 1 / 3  # a value that is not 0 takes 12 bytes, one that may be 0 takes 4


def onnx_model(dense: Model) -> onnx.ModelProto:
    """The file's content, from a model without sparse layers (`fedmef.nn.densify.dense_model`)."""
    return _Graph(dense.network, dense.state).model()


class _Graph:
    """Nodes and constants so far. A result of the network has its operation's name."""

    def __init__(self, network: Network, state: Mapping[str, Array]) -> None:
        self._network, self._state = network, state
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}
        self._sparse: dict[str, onnx.SparseTensorProto] = {}

    def model(self) -> onnx.ModelProto:
        images, operations = self._network.input, self._network.operations
        scale, shift = (constant[:, None, None] for constant in images.scale_and_shift())
        pixels = self._add("Cast", ["images"], "images/float", to=TensorProto.FLOAT)
        scaled = self._add("Mul", [pixels, self._constant("images/scale", scale)], "images/scaled")
        self._add("Sub", [scaled, self._constant("images/shift", shift)], INPUT)
        for operation in operations:
            self._translate(operation)
        logits = operations[-1].name
        if "logits" not in self._network.shapes:
            logits = self._add("Identity", [logits], "logits")
        taken = helper.make_tensor_value_info("images", TensorProto.UINT8, ["n", *images.shape])
        given = helper.make_tensor_value_info(logits, TensorProto.FLOAT, ["n", self._network.classes])
        graph = helper.make_graph(
            self._nodes,
            "fedmef",
            [taken],
            [given],
            list(self._constants.values()),
            sparse_initializer=list(self._sparse.values()),
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
        model.producer_name = "fedmef"
        onnx.checker.check_model(model)
        return model

    def _add(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self._nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def _constant(self, name: str, value: NDArray[Any]) -> str:
        if name not in self._constants and name not in self._sparse:
            array = np.ascontiguousarray(value)
            if array.ndim > 1 and np.count_nonzero(array) < SPARSE_BELOW * array.size:
                self._sparse[name] = _sparse(name, array)
            else:
                self._constants[name] = numpy_helper.from_array(array, name)
        return name

    def _array(self, name: str) -> str:
        return self._constant(name, self._state[name].astype(np.float32))

    def _number(self, value: float) -> str:
        return self._constant(f"constant/{value!r}", np.array(value, dtype=np.float32))

    def _translate(self, operation: Operation) -> None:  # noqa: PLR0912
        inputs, name = list(operation.inputs), operation.name
        match operation:
            case Convolution() | Linear():
                self._layer(operation)
            case BatchNorm():
                self._batch_norm(operation)
            case LayerNorm():
                self._layer_norm(operation)
            case Scale():
                self._add("Mul", [*inputs, self._number(operation.factor)], name)
            case ReLU(upper=None):
                self._add("Relu", inputs, name)
            case ReLU(upper=float() as upper):
                self._add("Clip", [*inputs, self._number(0.0), self._number(upper)], name)
            case MaxPool():
                self._add("MaxPool", inputs, name, **_window(operation), dilations=operation.dilation)
            case AveragePool():
                self._average_pool(operation)
            case AdaptiveAveragePool(size=(1, 1)):
                self._add("GlobalAveragePool", inputs, name)
            case AdaptiveAveragePool():
                self._adaptive_average_pool(operation)
            case Add():
                self._add("Add", inputs, name)
            case Concatenate():
                self._add("Concat", inputs, name, axis=1)
            case Flatten():
                self._add("Flatten", inputs, name)
            case _:
                raise UserError(f"ONNX has no operation '{operation.kind}'")

    def _layer(self, operation: Convolution | Linear) -> None:
        arrays = [*operation.inputs, self._array(f"{operation.module}.weight")]
        if operation.bias:
            arrays.append(self._array(f"{operation.module}.bias"))
        if isinstance(operation, Linear):
            self._add("Gemm", arrays, operation.name, transB=1)
            return
        self._add(
            "Conv",
            arrays,
            operation.name,
            kernel_shape=operation.shape[2:],
            strides=operation.stride,
            pads=operation.padding * 2,
            dilations=operation.dilation,
            group=operation.groups,
        )

    def _batch_norm(self, operation: BatchNorm) -> None:
        channels, module = operation.channels, operation.module
        if operation.affine:
            affine = [self._array(f"{module}.weight"), self._array(f"{module}.bias")]
        else:
            affine = [
                self._constant(f"{module}.ones", np.ones(channels, dtype=np.float32)),
                self._constant(f"{module}.zeros", np.zeros(channels, dtype=np.float32)),
            ]
        running = [self._array(f"{module}.running_mean"), self._array(f"{module}.running_var")]
        self._add(
            "BatchNormalization",
            [*operation.inputs, *affine, *running],
            operation.name,
            epsilon=operation.epsilon,
        )

    def _layer_norm(self, operation: LayerNorm) -> None:
        """As `fedmef.nn.features` does it: first in units of the largest magnitude."""
        (given,), name = operation.inputs, operation.name
        axes = list(range(1, len(self._network.shapes[given]) + 1))

        def step(kind: str, inputs: list[str], what: str, **attributes: Any) -> str:
            return self._add(kind, inputs, f"{name}/{what}", **attributes)

        largest = step("ReduceMax", [step("Abs", [given], "abs")], "max", axes=axes)
        shown = step("Greater", [largest, self._number(SMALLEST)], "shown")
        unit = step("Where", [shown, largest, self._number(1.0)], "unit")
        scaled = step("Div", [given, unit], "scaled")
        centred = step("Sub", [scaled, step("ReduceMean", [scaled], "mean", axes=axes)], "centred")
        variance = step("ReduceMean", [step("Mul", [centred, centred], "square")], "variance", axes=axes)
        safe = step("Add", [variance, self._number(operation.epsilon)], "safe")
        self._add("Div", [centred, step("Sqrt", [safe], "deviation")], name)

    def _average_pool(self, operation: AveragePool) -> None:
        if operation.divisor is None:
            counted = int(operation.count_padding)
            self._add(
                "AveragePool",
                list(operation.inputs),
                operation.name,
                **_window(operation),
                count_include_pad=counted,
            )
            return
        if operation.ceil_mode:
            raise UserError(f"'{operation.name}': ONNX has no average with ceil_mode and a divisor")
        mean = f"{operation.name}/mean"
        self._add("AveragePool", list(operation.inputs), mean, **_window(operation), count_include_pad=1)
        factor = self._number(math.prod(operation.kernel) / operation.divisor)
        self._add("Mul", [mean, factor], operation.name)

    def _adaptive_average_pool(self, operation: AdaptiveAveragePool) -> None:
        """Means of rows and of columns are products with a matrix from either side."""
        (given,), name = operation.inputs, operation.name
        _, height, width = self._network.shapes[given]
        rows = self._constant(f"{name}/rows", _means(height, operation.size[0]))
        columns = self._constant(f"{name}/columns", _means(width, operation.size[1]).T)
        self._add("MatMul", [self._add("MatMul", [rows, given], f"{name}/down"), columns], name)


def _window(operation: MaxPool | AveragePool) -> dict[str, Any]:
    return {
        "kernel_shape": operation.kernel,
        "strides": operation.stride,
        "pads": operation.padding * 2,
        "ceil_mode": int(operation.ceil_mode),
    }


def _means(size: int, parts: int) -> NDArray[np.float32]:
    """[parts, size]: what averages each part, as PyTorch divides them."""
    matrix = np.zeros((parts, size), dtype=np.float32)
    for part in range(parts):
        begin, end = part * size // parts, -(-(part + 1) * size // parts)
        matrix[part, begin:end] = 1 / (end - begin)
    return matrix


def _sparse(name: str, array: NDArray[np.float32]) -> onnx.SparseTensorProto:
    places = np.flatnonzero(array)
    values = numpy_helper.from_array(array.reshape(-1)[places], name)
    indices = numpy_helper.from_array(places.astype(np.int64), f"{name}/places")
    return helper.make_sparse_tensor(values, indices, list(array.shape))
