"""A plan: what the native program does, instruction by instruction, and where in one arena every result lies.

Plain data without the extension: `fedmef.native.lowering` makes it from a network.
"""

from dataclasses import dataclass, field
from typing import Any

from fedmef.sparsity.masks import packed_size
from fedmef.sparsity.operations import Cache, Shape

ALIGNMENT = 64  # bytes: a cache line, and the widest vector
WORTH_LANES = 0.6  # below this share of lanes with an image, images lie one after the other
CACHE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}


@dataclass(frozen=True)
class Layout:
    """How a batch lies in memory: [blocks][channels][height][width][lanes]."""

    images: int
    lanes: int = 1

    @property
    def blocks(self) -> int:
        """Groups of `lanes` images; the last one may have lanes without an image."""
        return -(-self.images // self.lanes)

    @classmethod
    def of(cls, images: int, lanes: int) -> "Layout":
        """The layout of a batch, given how many lanes the kernels have."""
        full = cls(images, lanes)
        return full if images >= WORTH_LANES * full.blocks * lanes else cls(images)

    def elements(self, shape: Shape) -> int:
        """Of a result of which one image has this shape, lanes without an image included."""
        size = self.blocks * self.lanes
        for length in shape:
            size *= length
        return size

    def dense_bytes(self, shape: Shape) -> int:
        """Of such a result, or of its gradient."""
        return 4 * self.elements(shape)

    def bit_bytes(self, shape: Shape) -> int:
        """Of one bit an element."""
        return rounded(packed_size(self.elements(shape)), 8)

    def cache_bytes(self, shape: Shape, keep: int, cache: Cache) -> int:
        """Of a pruned result: its bits, the values that are kept, and where each plane's values begin."""
        starts = 4 * (self.blocks * shape[0] + 1)
        parts = self.bit_bytes(shape), keep * CACHE_BYTES[cache.dtype], starts
        return sum(rounded(part, ALIGNMENT) for part in parts)


@dataclass(frozen=True)
class Instruction:
    """One call of the native program.

    Attributes:
        kind: the method's name.
        buffers: numbers of the buffers that it reads or writes, by argument.
        options: its other arguments.
    """

    kind: str
    buffers: dict[str, int] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """A list of instructions over buffers in one arena.

    Attributes:
        sizes: bytes of each buffer.
        offsets: where in the arena each begins. Buffers that are never in use together may overlap.
        bits: which buffer begins with one bit an element of which result: of what a layer keeps of its input,
            or of where a ReLU lets gradients pass. By operation, with the shape of that result.
    """

    layout: Layout
    instructions: tuple[Instruction, ...]
    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    bits: dict[str, tuple[int, Shape]]

    @property
    def arena(self) -> int:
        """Bytes that hold all buffers."""
        return max((offset + size for offset, size in zip(self.offsets, self.sizes, strict=True)), default=0)


def rounded(size: int, multiple: int) -> int:
    """The next multiple."""
    return -(-size // multiple) * multiple
