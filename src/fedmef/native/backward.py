"""The backward pass as instructions: gradients in as few buffers as the network allows.

Operations are taken from the last to the first. A gradient that several results have in common, as the two
inputs of a sum do, lies in one buffer until somebody must change it.
"""

from fedmef.native.forward import ForwardPass, Mode, is_fixed, is_plane_by_plane, pooling, spatial
from fedmef.sparsity.network import INPUT
from fedmef.sparsity.operations import (
    AdaptiveAveragePool,
    Add,
    AveragePool,
    BatchNorm,
    Concatenate,
    Flatten,
    Layer,
    LayerNorm,
    Linear,
    MaxPool,
    Operation,
    ReLU,
    Scale,
)

Pool = MaxPool | AveragePool | AdaptiveAveragePool


class BackwardPass:
    """Writes the loss and, operation by operation, gradients and what is done with them."""

    def __init__(self, forward: ForwardPass, mode: Mode) -> None:
        self.forward, self.mode = forward, mode
        self.needs, self.writer, self.shapes = forward.needs, forward.writer, forward.shapes
        self._gradients: dict[str, int] = {}  # of results, those whose operation is still to come

    def write(self) -> None:
        """From the loss to the first layer that is trained."""
        logits, operations = self.needs.logits, self.needs.network.operations
        gradient = self.forward.buffers[logits]
        if not self.needs.may_overwrite(logits, len(operations)):
            gradient = self.writer.copied(gradient, self.shapes[logits])
        self.writer.emit("cross_entropy", {"logits": gradient}, classes=self.needs.network.classes)
        if logits in self.needs.differentiable:
            self._gradients[logits] = gradient
        for operation in reversed(operations):
            if operation.name in self.needs.differentiable and not isinstance(operation, Flatten):
                self._operation(operation, self._gradients.pop(operation.name))

    def _operation(self, operation: Operation, gradient: int) -> None:
        match operation:
            case Layer():
                self._layer(operation, gradient)
            case BatchNorm():
                self._batch_norm(operation, gradient)
            case MaxPool() | AveragePool() | AdaptiveAveragePool():
                self._pool(operation, gradient)
            case Concatenate():
                self._concatenate(operation, gradient)
            case Add():
                for name in operation.inputs:
                    self._pass_on(name, gradient)
            case _:
                self._in_place(operation, gradient)

    def _layer(self, layer: Layer, gradient: int) -> None:
        """The weights' gradient first: what was kept for it makes room before the input's gradient comes.

        The input's gradient is that of the weights before their step: they are put into its order first, and
        then may change at once, so that no layer's gradient waits while another one is computed.
        """
        changes = bool(layer.arrays().keys() & self.needs.trained)
        buffers = {"dy": gradient}
        if self.needs.reads_input(layer):
            if layer.name in self.forward.caches:
                buffers["cache"] = self.forward.caches[layer.name]
            else:
                buffers["dense"] = self._kept(layer.inputs[0])
        wanted, trains = self._wants(layer.inputs[0]), changes and self.mode == "train"
        waits = isinstance(layer, Linear) and not layer.sparse  # it has no other order, and few weights
        if wanted and not waits:
            self.writer.emit("transpose", {}, layer=layer.module)
        if changes:
            self.writer.emit("weight_gradient" if trains else "score", buffers, layer=layer.module)
        if trains and not waits:
            self.writer.emit("update", {}, layer=layer.module)
        if wanted:
            into, accumulate = self._layer_target(layer, gradient)
            buffers = {"dy": gradient, "dx": into}
            self.writer.emit("input_gradient", buffers, layer=layer.module, accumulate=accumulate)
        if trains and waits:
            self.writer.emit("update", {}, layer=layer.module)

    def _batch_norm(self, operation: BatchNorm, gradient: int) -> None:
        shape = self.shapes[operation.name]
        source = self._kept(operation.inputs[0])
        into = gradient if not self._holders(gradient) else self.writer.dense(shape)
        self.writer.emit(
            "batch_norm_backward",
            {"x": source, "dy": gradient, "dx": into, "statistics": self.forward.saved[operation.name]},
            layer=operation.module,
            shape=spatial(shape),
            fixed=is_fixed(self.writer.layout.images, shape, self.mode),
            update=self.mode == "train",
        )
        self._pass_on(operation.inputs[0], into)

    def _pool(self, operation: Pool, gradient: int) -> None:
        into, accumulate = self._target(operation.inputs[0], gradient)
        buffers = {"dy": gradient, "dx": into}
        if isinstance(operation, MaxPool):
            buffers["places"] = self.forward.saved[operation.name]
        options = pooling(operation, self.shapes)
        self.writer.emit("pool_backward", buffers, **options, accumulate=accumulate)

    def _concatenate(self, operation: Operation, gradient: int) -> None:
        for name, place, size, stride in self.forward.parts(operation):
            if self._wants(name):
                into, accumulate = self._target(name, gradient)
                self.writer.copy_part(into, (0, size), gradient, (place, stride), size, accumulate=accumulate)

    def _in_place(self, operation: Operation, gradient: int) -> None:
        """What changes every element of the gradient where it is."""
        shape, saved = self.shapes[operation.name], self.forward.saved.get(operation.name, -1)
        if self._holders(gradient):
            gradient = self.writer.copied(gradient, shape)
        match operation:
            case ReLU():
                count = self.writer.layout.elements(shape)
                self.writer.emit("relu_backward", {"gradient": gradient, "bits": saved}, count=count)
            case Scale():
                self.writer.emit("scale", {"x": gradient}, factor=operation.factor)
            case LayerNorm():
                buffers = {"y": self.forward.buffer(operation.name), "factors": saved, "gradient": gradient}
                size = self.writer.layout.elements(shape) // self.writer.layout.elements(())
                self.writer.emit("layer_norm_backward", buffers, size=size)
            case _:
                raise NotImplementedError(operation.kind)
        self._pass_on(operation.inputs[0], gradient)

    def _kept(self, name: str) -> int:
        """A result of the forward pass; images are read once more, which is cheaper than keeping them."""
        if self.needs.root[name] != INPUT:
            return self.forward.buffer(name)
        images = self.writer.dense(self.shapes[INPUT])
        self.writer.emit("read_images", {"to": images})
        return images

    def _wants(self, name: str) -> bool:
        return self.needs.root[name] in self.needs.differentiable

    def _holders(self, buffer: int) -> int:
        """How many results still to come have their gradient in this buffer."""
        return list(self._gradients.values()).count(buffer)

    def _pass_on(self, name: str, gradient: int) -> None:
        """Let a result have this gradient too; the buffer itself stays as it is."""
        if not self._wants(name):
            return
        root = self.needs.root[name]
        if root not in self._gradients:
            self._gradients[root] = gradient
        else:
            if self._gradients[root] == gradient:  # two ways to one result that met in a sum before
                self._gradients[root] = self.writer.copied(gradient, self.shapes[root])
            else:
                self._own(root)
            self.writer.emit("add", {"to": self._gradients[root], "source": gradient})

    def _layer_target(self, layer: Layer, gradient: int) -> tuple[int, bool]:
        """The same for a layer, which may write where it finds its result's gradient."""
        root = self.needs.root[layer.inputs[0]]
        if is_plane_by_plane(layer) and root not in self._gradients and not self._holders(gradient):
            self._gradients[root] = gradient
            return gradient, False
        return self._target(layer.inputs[0], gradient)

    def _target(self, name: str, source: int) -> tuple[int, bool]:
        """Where a contribution to a result's gradient is written, and whether it is added there.

        Never where `source` is, which it is computed from: that of x + f(x) is x's gradient as well.
        """
        root = self.needs.root[name]
        if root in self._gradients:
            self._own(root, source)
            return self._gradients[root], True
        self._gradients[root] = self.writer.dense(self.shapes[root])
        return self._gradients[root], False

    def _own(self, root: str, source: int | None = None) -> None:
        """Make sure that no other result has its gradient in the same buffer, and that it is not `source`."""
        if self._gradients[root] == source or self._holders(self._gradients[root]) > 1:
            self._gradients[root] = self.writer.copied(self._gradients[root], self.shapes[root])
