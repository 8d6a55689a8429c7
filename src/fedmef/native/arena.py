"""Where buffers lie in one arena: those that are in use at the same time never overlap."""

from collections.abc import Sequence

from fedmef.native.plan import ALIGNMENT, Instruction, rounded

Lifetime = tuple[int, int]  # the first and the last instruction that uses a buffer


def lifetimes(instructions: Sequence[Instruction], count: int) -> list[Lifetime]:
    """When each of `count` buffers is in use; one that no instruction uses has no lifetime: (0, -1)."""
    first, last = [0] * count, [-1] * count
    for number, instruction in enumerate(instructions):
        for buffer in instruction.buffers.values():
            if last[buffer] < 0:
                first[buffer] = number
            last[buffer] = number
    return list(zip(first, last, strict=True))


def place(sizes: Sequence[int], lives: Sequence[Lifetime]) -> list[int]:
    """An offset for every buffer: the largest first, each at the lowest place that is free all its life."""
    offsets = [0] * len(sizes)
    placed: list[int] = []
    for buffer in sorted(range(len(sizes)), key=lambda buffer: (-sizes[buffer], lives[buffer])):
        neighbours = [other for other in placed if _meet(lives[buffer], lives[other])]
        offset = 0
        for other in sorted(neighbours, key=offsets.__getitem__):
            if offset + sizes[buffer] <= offsets[other]:
                break
            offset = max(offset, rounded(offsets[other] + sizes[other], ALIGNMENT))
        offsets[buffer] = offset
        placed.append(buffer)
    return offsets


def _meet(one: Lifetime, other: Lifetime) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]
