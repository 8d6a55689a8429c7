"""What both passes write to: a growing list of instructions and of the buffers that they use."""

from typing import Any

from fedmef.native.plan import Instruction, Layout
from fedmef.sparsity.operations import Shape


class Writer:
    """Instructions and sizes of buffers. A buffer is a number."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.instructions: list[Instruction] = []
        self.sizes: list[int] = []

    def new(self, size: int) -> int:
        """A buffer of this many bytes."""
        self.sizes.append(size)
        return len(self.sizes) - 1

    def dense(self, shape: Shape) -> int:
        """A buffer for a result, or a gradient, of which one image has this shape."""
        return self.new(self.layout.dense_bytes(shape))

    def emit(self, kind: str, buffers: dict[str, int], **options: Any) -> None:
        """The next instruction."""
        self.instructions.append(Instruction(kind, buffers, options))

    def copied(self, buffer: int, shape: Shape) -> int:
        """A new buffer with the same content."""
        copy = self.dense(shape)
        size = self.layout.elements(shape) // self.layout.blocks
        self.copy_part(copy, (0, size), buffer, (0, size), size, accumulate=False)
        return copy

    def copy_part(
        self,
        to: int,
        to_place: tuple[int, int],
        source: int,
        source_place: tuple[int, int],
        size: int,
        *,
        accumulate: bool,
    ) -> None:
        """Of every block `size` floats; a place is where the first block's begin, and from block to block."""
        self.emit(
            "copy",
            {"to": to, "source": source},
            to_offset=to_place[0],
            to_stride=to_place[1],
            source_offset=source_place[0],
            source_stride=source_place[1],
            size=size,
            accumulate=accumulate,
        )
