"""One convolution of a network, by our kernels and by PyTorch's: contestants for `kernels.py`."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks._interleaved import Contestant, clock_of, clocked, faster
from fedmef.experiment.settings import Experiment
from fedmef.models.initial import initial_model
from fedmef.native import _kernels
from fedmef.native.assembly import assemble, open_runtime
from fedmef.native.forward import spatial
from fedmef.native.plan import ALIGNMENT, Instruction, Layout, Plan, rounded
from fedmef.sparsity.masks import active_count, count_bits, random_mask
from fedmef.sparsity.network import INPUT, Input, Network
from fedmef.sparsity.operations import Cache, Convolution, Flatten, Shape

FORWARD, INPUT_GRADIENT = "forward", "input_gradient"
WEIGHT_GRADIENT, PRUNED_WEIGHT_GRADIENT = "weight_gradient", "weight_gradient_pruned"
CACHE = Cache(0.9)  # how FedMef keeps the input of a weight gradient


@dataclass(frozen=True)
class Geometry:
    """A convolution and what it takes and gives."""

    layer: Convolution
    input: Shape
    output: Shape
    first: bool  # it takes the images, which need no gradient
    dense: bool  # all of its weights are active, at any sparsity of the network

    @property
    def name(self) -> str:
        rows, columns = self.layer.shape[2:]
        stride = f" s{self.layer.stride[0]}" if self.layer.stride != (1, 1) else ""
        groups = self.layer.groups
        grouped = "" if groups == 1 else " dw" if groups == self.input[0] else f" g{groups}"
        return f"{self.input[0]}>{self.output[0]}@{self.input[1]} {rows}x{columns}{stride}{grouped}"

    @property
    def passes(self) -> list[str]:
        """Those that training may do with this layer."""
        passes = [FORWARD, WEIGHT_GRADIENT]
        if not self.first:
            passes.insert(1, INPUT_GRADIENT)
        if self.layer.cache.sparsity:
            passes.append(PRUNED_WEIGHT_GRADIENT)
        return passes


def geometries(network: str, width: int | None) -> list[Geometry]:
    """Every convolution of a network of FedMef's that differs from those before it."""
    statistics = (0.5,) * 3, (0.25,) * 3
    model = initial_model(Experiment(model=network, width=width), (3, 32, 32), 10, statistics)
    found: dict[str, Geometry] = {}
    for layer in model.network.operations:
        if isinstance(layer, Convolution):
            taken, given = model.network.shapes[layer.inputs[0]], model.network.shapes[layer.name]
            dense = not layer.sparse or count_bits(model.state[f"{layer.module}.mask"]) == layer.size
            geometry = Geometry(layer, taken, given, first=layer.inputs[0] == INPUT, dense=dense)
            found.setdefault(geometry.name, geometry)
    return list(found.values())


def native_passes(geometry: Geometry, sparsity: float, batch: int, threads: int) -> dict[str, Contestant]:
    """Ours: every pass is a program of its own, over one arena."""
    runtime = _loaded(geometry, sparsity, threads)
    layout, clock = Layout.of(batch, runtime.lanes), clock_of(threads)
    pixels = np.random.default_rng(0).integers(0, 256, (batch, *geometry.input), dtype=np.uint8)

    keep = active_count(batch * math.prod(geometry.input), CACHE.sparsity)
    x, y, dx, kept = range(4)  # buffers
    dense, result = layout.dense_bytes(geometry.input), layout.dense_bytes(geometry.output)
    sizes = (dense, result, dense, layout.cache_bytes(geometry.input, keep, CACHE))
    offsets = tuple(sum(rounded(size, ALIGNMENT) for size in sizes[:buffer]) for buffer in range(4))

    def contestant(*instructions: Instruction) -> Contestant:
        """Only the last instruction counts."""
        program = assemble(runtime, Plan(layout, instructions, sizes, offsets, {}))
        program.timed = True

        def turn() -> float:
            begin = clock()
            program.run(pixels, None)
            elapsed = clock() - begin
            return elapsed - float(program.seconds()[:-1].sum())

        return turn

    layer = {"layer": "layer"}
    over = {**layer, "accumulate": False}
    forward = Instruction("convolve", {"x": x, "y": y}, over)
    # The images, and a result that is as good a gradient as any, stay in the arena for the others.
    contestant(Instruction("read_images", {"to": x}), forward)()
    shape = {"shape": spatial(geometry.input), "keep": keep, "dtype": CACHE.dtype}
    prune = Instruction("prune", {"x": x, "cache": kept}, shape)
    passes = {
        FORWARD: [forward],
        INPUT_GRADIENT: [Instruction("input_gradient", {"dy": y, "dx": dx}, over)],
        WEIGHT_GRADIENT: [Instruction("weight_gradient", {"dy": y, "dense": x}, layer)],
        PRUNED_WEIGHT_GRADIENT: [prune, Instruction("weight_gradient", {"dy": y, "cache": kept}, layer)],
    }
    return {name: contestant(*passes[name]) for name in geometry.passes}


def _loaded(geometry: Geometry, sparsity: float, threads: int) -> _kernels.Runtime:
    """A runtime that has only this layer, without what normalises it, with random weights."""
    layer, channels = geometry.layer, geometry.input[0]
    alone = Convolution(
        name="layer",
        inputs=(INPUT,),
        module="layer",
        sparse=layer.sparse,
        shape=layer.shape,
        stride=layer.stride,
        padding=layer.padding,
        dilation=layer.dilation,
        groups=layer.groups,
    )
    images = Input(spatial(geometry.input), (0.5,) * channels, (0.25,) * channels)
    network = Network(images, (alone, Flatten(name="features", inputs=("layer",))))
    runtime = open_runtime(network, threads, instructions="")
    generator = np.random.default_rng(1)
    active = active_count(layer.size, sparsity)
    mask = random_mask(layer.size, active, generator) if layer.sparse else None
    runtime.load_layer("layer", generator.standard_normal(active, dtype=np.float32), mask, None, None)
    return runtime


def dense_passes(geometry: Geometry, batch: int, threads: int) -> dict[str, Contestant]:
    """PyTorch's: each in the layout that is faster for it."""
    torch.set_num_threads(threads)
    layouts = {
        "contiguous": _passes_in(geometry, batch, torch.contiguous_format),
        "channels last": _passes_in(geometry, batch, torch.channels_last),
    }
    best: dict[str, Contestant] = {}
    for name in geometry.passes:
        if name == PRUNED_WEIGHT_GRADIENT:
            best[name] = best[WEIGHT_GRADIENT]
        else:
            candidates = {layout: clocked(passes[name], threads) for layout, passes in layouts.items()}
            best[name] = faster(candidates, threads)
    return best


def _passes_in(
    geometry: Geometry, batch: int, layout: torch.memory_format
) -> dict[str, Callable[[], object]]:
    layer = geometry.layer

    def tensor(*shape: int) -> torch.Tensor:
        return torch.randn(*shape).contiguous(memory_format=layout)

    x, dy, weight = tensor(batch, *geometry.input), tensor(batch, *geometry.output), tensor(*layer.shape)
    window = layer.stride, layer.padding, layer.dilation

    def backward(*wanted: bool) -> object:
        return torch.ops.aten.convolution_backward(
            dy, x, weight, None, *window, False, (0, 0), layer.groups, wanted
        )

    return {
        FORWARD: lambda: F.conv2d(x, weight, None, *window, layer.groups),
        INPUT_GRADIENT: lambda: backward(True, False, False),
        WEIGHT_GRADIENT: lambda: backward(False, True, False),
    }
