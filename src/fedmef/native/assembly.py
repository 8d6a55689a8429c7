"""From plain data to the extension: a network's layers to a runtime, a plan to a program."""

import os

from fedmef.errors import NetworkError, UserError
from fedmef.native import _kernels
from fedmef.native.forward import spatial
from fedmef.native.plan import Plan
from fedmef.native.support import check
from fedmef.sparsity.network import Network
from fedmef.sparsity.operations import BatchNorm, Convolution, Layer, Linear


def open_runtime(network: Network, threads: int, instructions: str) -> _kernels.Runtime:
    """The layers of a network, without a state. `instructions` "" are the fastest."""
    check(network)
    scale, shift = network.input.scale_and_shift()
    try:
        runtime = _kernels.Runtime(instructions, threads, network.input.shape, scale, shift)
    except RuntimeError as error:
        raise UserError(f"{threads} threads cannot be started: {_first(error)}") from None
    except (ValueError, TypeError) as error:
        raise NetworkError(f"the native kernels cannot take these images: {_first(error)}") from None
    for operation in network.operations:
        try:
            if isinstance(operation, Layer):
                _add_layer(runtime, network, operation)
            elif isinstance(operation, BatchNorm):
                _add_batch_norm(runtime, network, operation)
        except (ValueError, TypeError, OverflowError) as error:  # what does not fit 32 bits is a TypeError
            raise NetworkError(
                f"the native kernels cannot execute '{operation.name}': {_first(error)}"
            ) from None
    return runtime


def assemble(runtime: _kernels.Runtime, plan: Plan) -> _kernels.Program:
    """A program that can run; the extension checks every instruction once more."""
    if plan.arena > (memory := _memory()):
        needs = f"{plan.arena / 1e9:.1f} GB for a batch of {plan.layout.images}, of {memory / 1e9:.1f} GB"
        raise NetworkError(f"the native kernels cannot execute this network: it needs {needs}")
    try:
        program = _kernels.Program(runtime, plan.layout.images, plan.layout.lanes, plan.arena)
        for offset, size in zip(plan.offsets, plan.sizes, strict=True):
            program.buffer(offset, size)
        for instruction in plan.instructions:
            getattr(program, instruction.kind)(**instruction.buffers, **instruction.options)
    except (ValueError, TypeError, OverflowError) as error:
        raise NetworkError(f"the native kernels cannot execute this network: {_first(error)}") from None
    return program


def _add_layer(runtime: _kernels.Runtime, network: Network, layer: Layer) -> None:
    window: tuple[int, ...] = (1, 1, 1, 1, 0, 0, 1, 1)
    groups = 1
    if isinstance(layer, Convolution):
        window = (*layer.shape[2:], *layer.stride, *layer.padding, *layer.dilation)
        groups = layer.groups
    constants = None
    if (how := layer.normalization) is not None:
        constants = (how.gamma, how.epsilon, how.scaling == "paper", how.input_channels)
    runtime.add_layer(
        layer.module,
        spatial(network.shapes[layer.inputs[0]]),
        spatial(network.shapes[layer.name]),
        window,
        groups,
        sparse=layer.sparse,
        linear=isinstance(layer, Linear) and not layer.sparse,
        bias=layer.bias,
        gain=layer.gain,
        normalization=constants,
        train_values=f"{layer.module}.{'values' if layer.sparse else 'weight'}" not in network.frozen,
        train_gain=f"{layer.module}.gain" not in network.frozen,
        train_bias=f"{layer.module}.bias" not in network.frozen,
    )


def _add_batch_norm(runtime: _kernels.Runtime, network: Network, operation: BatchNorm) -> None:
    runtime.add_batch_norm(
        operation.module,
        operation.channels,
        operation.epsilon,
        operation.momentum,
        operation.affine,
        train_gain=f"{operation.module}.weight" not in network.frozen,
        train_bias=f"{operation.module}.bias" not in network.frozen,
    )


def _memory() -> int:
    """Bytes that this machine has: more would be promised, and the process killed when it takes them."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _first(error: Exception) -> str:
    """nanobind lists every signature after the first line."""
    return str(error).splitlines()[0][:200]
