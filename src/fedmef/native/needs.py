"""What a plan must know of a network first: who reads a result, what has a gradient, what must be kept."""

from collections.abc import Iterable
from functools import cached_property

from fedmef.sparsity.network import INPUT, Network
from fedmef.sparsity.operations import BatchNorm, Flatten, Layer, LayerNorm


class Needs:
    """Facts about a network of which the arrays named `trained` get a gradient.

    A result that is only flattened lies where it lay before: `root` is the name of the result that it is.
    """

    def __init__(self, network: Network, trained: Iterable[str]) -> None:
        self.network = network
        self.trained = frozenset(trained)
        self.root = {INPUT: INPUT}
        for operation in network.operations:
            flat = isinstance(operation, Flatten)
            self.root[operation.name] = self.root[operation.inputs[0]] if flat else operation.name

    @property
    def logits(self) -> str:
        """The result that the network gives."""
        return self.root[self.network.operations[-1].name]

    @cached_property
    def readers(self) -> dict[str, list[int]]:
        """Positions of the operations that read a result; the loss stands behind the last one."""
        readers: dict[str, list[int]] = {name: [] for name in self.root.values()}
        for position, operation in enumerate(self.network.operations):
            if not isinstance(operation, Flatten):
                for name in operation.inputs:
                    readers[self.root[name]].append(position)
        readers[self.logits].append(len(self.network.operations))
        return readers

    @cached_property
    def differentiable(self) -> frozenset[str]:
        """Results whose gradient something trained depends on."""
        moving: set[str] = set()
        for operation in self.network.operations:
            sources = {self.root[name] for name in operation.inputs}
            if sources & moving or operation.arrays().keys() & self.trained:
                moving.add(self.root[operation.name])
        used = {self.logits}
        for operation in reversed(self.network.operations):
            if self.root[operation.name] in used:
                used.update(self.root[name] for name in operation.inputs)
        return frozenset(moving & used)

    @cached_property
    def kept(self) -> frozenset[str]:
        """Results that the backward pass reads as they are. Images are read again instead."""
        kept: set[str] = set()
        for operation in self.network.operations:
            if self.root[operation.name] not in self.differentiable:
                continue
            if isinstance(operation, LayerNorm):
                kept.add(operation.name)
            elif isinstance(operation, BatchNorm) or (
                isinstance(operation, Layer) and self.reads_input(operation) and not operation.cache.sparsity
            ):
                kept.add(self.root[operation.inputs[0]])
        return frozenset(kept - {INPUT})

    def reads_input(self, layer: Layer) -> bool:
        """Whether the gradient of a layer's weights is computed, for which it needs its input."""
        weights = {f"{layer.module}.{name}" for name in ("weight", "values", "gain")}
        return bool(weights & self.trained) and layer.name in self.differentiable

    def may_overwrite(self, name: str, position: int) -> bool:
        """Whether the operation at this position may write its result where it finds the result `name`."""
        return name not in self.kept and max(self.readers[name], default=-1) <= position
