"""What a network as data computes, in plain NumPy and double precision: a second reading of its definition.

It shares no code with PyTorch's execution; both read the same operations and the same arrays.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedmef.sparsity import operations as ops
from fedmef.sparsity.arrays import Array
from fedmef.sparsity.masks import active_count
from fedmef.sparsity.network import INPUT, Network

Doubles = NDArray[np.float64]
Pair = tuple[int, int]


def execute(network: Network, state: Mapping[str, Array], images: Array) -> Doubles:
    """Logits [n, classes] of images (uint8) [n, channels, height, width], in evaluation mode."""
    results: dict[str, Doubles] = {INPUT: network.input.normalize(images).astype(np.float64)}
    for operation in network.operations:
        inputs = [results[name] for name in operation.inputs]
        result = _run(operation, state, inputs, network.shapes[operation.name])
        assert result.shape == (len(images), *network.shapes[operation.name]), operation.name
        results[operation.name] = result
    return results[network.operations[-1].name]


def _run(  # noqa: PLR0911
    operation: ops.Operation, state: Mapping[str, Array], inputs: list[Doubles], shape: ops.Shape
) -> Doubles:
    first = inputs[0]
    match operation:
        case ops.Convolution():
            return _convolve(operation, state, first, shape)
        case ops.Linear():
            return _with_bias(operation, state, first @ weight_of(operation, state).T)
        case ops.BatchNorm():
            return _batch_norm(operation, state, first)
        case ops.ReLU():
            return np.clip(first, 0, operation.upper)
        case ops.MaxPool():
            geometry = operation.kernel, operation.stride, operation.padding, operation.dilation
            result: Doubles = _windows(first, *geometry, shape[1:], -np.inf).max((-2, -1))
            return result
        case ops.AveragePool():
            return _average_pool(operation, first, shape)
        case ops.AdaptiveAveragePool():
            return _adaptive_pool(first, operation.size)
        case ops.Add():
            return first + inputs[1]
        case ops.LayerNorm():
            return _layer_norm(first, operation.epsilon)
        case ops.Scale():
            return first * operation.factor
        case ops.Concatenate():
            return np.concatenate(inputs, axis=1)
        case ops.Flatten():
            return first.reshape(len(first), -1)
    raise NotImplementedError(operation.kind)


def _layer_norm(values: Doubles, epsilon: float) -> Doubles:
    own = tuple(range(1, values.ndim))
    values = values / np.maximum(np.abs(values).max(own, keepdims=True), 1e-30)
    centered = values - values.mean(own, keepdims=True)
    result: Doubles = centered / np.sqrt(np.square(centered).mean(own, keepdims=True) + epsilon)
    return result


def weight_of(layer: ops.Layer, state: Mapping[str, Array]) -> Doubles:
    """The dense weight that a layer uses, zero where it is pruned."""
    if not layer.sparse:
        dense: Doubles = state[f"{layer.module}.weight"].astype(np.float64)
        return dense
    values = state[f"{layer.module}.values"].astype(np.float64)
    bits = [bool(byte >> place & 1) for byte in state[f"{layer.module}.mask"].tolist() for place in range(8)]
    active = np.array(bits[: layer.size]).reshape(layer.filters, -1)
    if layer.swat:
        left_out = np.argsort(np.abs(values))[: values.size - active_count(values.size, layer.swat)]
        values[left_out] = 0
    weight = np.zeros(active.shape)
    weight[active] = values
    if layer.normalization is not None:
        weight = _normalized(weight, active, layer.normalization)
    if layer.gain:
        weight *= state[f"{layer.module}.gain"][:, None]
    return weight.reshape(layer.weight_shape)


def _normalized(weight: Doubles, active: NDArray[np.bool_], constants: ops.Normalization) -> Doubles:
    """NSConv (Eq. 6-7): fewer than two weights are none, nearly equal ones go over to the others' scale."""
    counts = active.sum(1)
    centered = (weight - (weight.sum(1) / np.maximum(counts, 1))[:, None]) * active
    energy = np.square(centered).sum(1)
    scale = 1 / np.sqrt(energy + constants.epsilon)
    varied = energy > constants.epsilon
    usual = scale[varied].mean() if varied.any() else 0.0
    scale = usual + (scale - usual) * np.minimum(energy / constants.epsilon, 1)
    if constants.scaling == "paper":
        scale *= np.sqrt(counts / constants.input_channels)
    result: Doubles = centered * (constants.gamma * scale * (counts >= 2))[:, None]
    return result


def _convolve(
    layer: ops.Convolution, state: Mapping[str, Array], images: Doubles, shape: ops.Shape
) -> Doubles:
    weight = weight_of(layer, state)
    columns = _windows(images, weight.shape[2:], layer.stride, layer.padding, layer.dilation, shape[1:], 0.0)
    grouped = np.split(columns, layer.groups, axis=1), np.split(weight, layer.groups)
    parts = [
        np.tensordot(column, filters, ((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2)
        for column, filters in zip(*grouped, strict=True)
    ]
    return _with_bias(layer, state, np.concatenate(parts, axis=1))


def _with_bias(layer: ops.Layer, state: Mapping[str, Array], result: Doubles) -> Doubles:
    return result + _by_channel(state[f"{layer.module}.bias"], result) if layer.bias else result


def _batch_norm(operation: ops.BatchNorm, state: Mapping[str, Array], values: Doubles) -> Doubles:
    arrays = {name.rpartition(".")[2]: _by_channel(state[name], values) for name in operation.arrays()}
    result = (values - arrays["running_mean"]) / np.sqrt(arrays["running_var"] + operation.epsilon)
    return result * arrays["weight"] + arrays["bias"] if operation.affine else result


def _by_channel(vector: Array, values: Doubles) -> Doubles:
    channels: Doubles = vector.astype(np.float64).reshape(-1, *[1] * (values.ndim - 2))
    return channels


def _average_pool(operation: ops.AveragePool, images: Doubles, shape: ops.Shape) -> Doubles:
    geometry = operation.kernel, operation.stride, operation.padding, (1, 1), shape[1:]
    sums: Doubles = _windows(images, *geometry, 0.0).sum((-2, -1))
    if operation.divisor is not None:
        return sums / operation.divisor
    ones = np.ones((1, 1, *images.shape[2:]))
    if operation.count_padding:  # the padding that was asked for, not what ceil_mode adds
        ones = np.pad(ones, ((0, 0), (0, 0), *((pad, pad) for pad in operation.padding)), constant_values=1)
        geometry = operation.kernel, operation.stride, (0, 0), (1, 1), shape[1:]
    counts: Doubles = _windows(ones, *geometry, 0.0).sum((-2, -1))
    return sums / counts


def _adaptive_pool(images: Doubles, size: Pair) -> Doubles:
    height, width = images.shape[2:]
    result = np.empty((*images.shape[:2], *size))
    for row in range(size[0]):
        for column in range(size[1]):
            top, bottom = row * height // size[0], -(-(row + 1) * height // size[0])
            left, right = column * width // size[1], -(-(column + 1) * width // size[1])
            result[:, :, row, column] = images[:, :, top:bottom, left:right].mean((2, 3))
    return result


def _windows(
    images: Doubles,
    kernel: ops.Shape,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    counts: ops.Shape,
    fill: float,
) -> Doubles:
    """[n, c, rows, columns, kh, kw]: what each window sees, with `fill` wherever it leaves the image."""
    places, margins = [], []
    for axis in range(2):
        starts = np.arange(counts[axis]) * stride[axis]
        place = starts[:, None] + np.arange(kernel[axis]) * dilation[axis]  # [windows, k] of the padded image
        beyond = max(0, int(place.max()) + 1 - padding[axis] - images.shape[2 + axis])
        places.append(place)
        margins.append((padding[axis], beyond))
    padded = np.pad(images, ((0, 0), (0, 0), *margins), constant_values=fill)
    windows: Doubles = padded[:, :, places[0][:, None, :, None], places[1][None, :, None, :]]
    return windows
