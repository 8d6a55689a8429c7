"""Messages of every kind, small but real, and what can happen to them on the way.

As a program it decodes so many mutated messages with only so much memory to spare, and ends with the first
that gives anything but a model, an update or an error of ours:

    python -m tests.wire.mutations MESSAGES [SEED]
"""

import random
import re
import resource
import signal
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from fedmef.methods import Plan
from fedmef.methods.base import Extras
from fedmef.nn import GrowthScores, SparseConv2d, sparse_layers
from fedmef.wire import MaskMemory, MaskMissingError, MessageError, decode, encode, mask_version
from fedmef.wire.checksum import UNSET, stamp
from fedmef.wire.exchange import decode_broadcast, decode_update, encode_broadcast, encode_update
from fedmef.wire.sizes import SCHEMES

SPARE_BYTES = 2**27

Decode = Callable[[bytes], object]
WORDS = (
    b"F32",
    b"F16",
    b"BF16",
    b"U8",
    b"I64",
    b"F64",
    b"BOOL",
    b"F8_E4M3",
    b"C64",
    b"-1",
    b"0",
    b"9",
    b"null",
)
NUMBERS = (
    b"99999999999999999999",
    b"9223372036854775807",
    b"4294967296",
    b"1e400",
    b"NaN",
    b"[]",
    b"{}",
    b'""',
)


def network(seed: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    return nn.Sequential(
        SparseConv2d(3, 8, 3, sparsity=0.9, generator=generator),
        nn.BatchNorm2d(8),
        SparseConv2d(8, 8, 3, sparsity=0.6, generator=generator),
        SparseConv2d(8, 2, 1, sparsity=0.0, generator=generator),
    )


def messages(memory: MaskMemory) -> list[tuple[bytes, Decode]]:
    """A message of every kind and what decodes it; the memory gets the masks that they build on."""
    model, before, plan = network(), network(1), Plan(3, 0.1, 0.4)
    for held in (model, before):
        masks = {name: layer.mask for name, layer in sparse_layers(held).items()}
        memory.remember(masks, mask_version(masks))
    known = {name: layer.mask.clone() for name, layer in sparse_layers(model).items()}
    (first, *_) = known
    closely = {**known, first: known[first] ^ 1}
    memory.remember(closely, mask_version(closely))
    down = [encode_broadcast(model, plan, scheme=scheme) for scheme in SCHEMES]
    down += [encode_broadcast(model, plan, wire_dtype=dtype) for dtype in ("fp16", "bf16")]
    down += [encode_broadcast(model, plan, known=masks) for masks in (known, closely)]
    growth = {"2": GrowthScores(torch.arange(1, 570, 7), torch.ones(82))}
    extras = Extras(growth, {"importance": torch.ones(3), "time": torch.tensor(2)}, known)
    up = [encode_update(1, 5, 0.5, model, extras, scheme=scheme) for scheme in SCHEMES]
    up.append(encode_update(1, 5, 0.5, model, Extras(), wire_dtype="fp16"))
    return [
        *((message, lambda content: decode_broadcast(content, model, memory)) for message in down),
        *((message, lambda content: decode_update(content, model)) for message in up),
        (encode(model.state_dict(), {"next_round": 3}), decode),
    ]


def mutate(message: bytes, other: bytes, chance: random.Random) -> bytes:
    """One or a few changes."""
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        change = chance.choice(
            (flip, flip_behind_header, cut, extend, splice, edit_header, edit_header, resize_header)
        )
        message = change(message, other, chance)
    return message


def flip(message: bytes, other: bytes, chance: random.Random) -> bytes:
    changed = bytearray(message)
    for _ in range(chance.choice((1, 1, 2, 8))):
        if changed:
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def flip_behind_header(message: bytes, other: bytes, chance: random.Random) -> bytes:
    start = header_end(message)
    return message[:start] + flip(message[start:], other, chance)


def cut(message: bytes, other: bytes, chance: random.Random) -> bytes:
    return message[: chance.randrange(len(message) + 1)]


def extend(message: bytes, other: bytes, chance: random.Random) -> bytes:
    return message + chance.randbytes(chance.choice((1, 8, 100)))


def splice(message: bytes, other: bytes, chance: random.Random) -> bytes:
    """The beginning of one message and the end of another, or a piece of the other one over this one."""
    at = chance.randrange(len(message) + 1)
    piece = other[chance.randrange(len(other)) :]
    if chance.random() < 0.5:
        return message[:at] + piece
    piece = piece[: chance.choice((1, 4, 40, 400))]
    return message[:at] + piece + message[at + len(piece) :]


def edit_header(message: bytes, other: bytes, chance: random.Random) -> bytes:
    """A word or a number of the JSON becomes another, and the length is put right."""
    end = header_end(message)
    header = message[8:end]
    starts = [at for at in range(1, len(header)) if is_word(header, at) and not is_word(header, at - 1)]
    if not starts:
        return message
    start = chance.choice(starts)
    stop = start
    while is_word(header, stop):
        stop += 1
    words = (*WORDS, *NUMBERS, str(chance.randrange(1000)).encode(), chance.choice(starts).to_bytes(2, "big"))
    header = header[:start] + chance.choice(words) + header[stop:]
    return struct.pack("<Q", len(header)) + header + message[end:]


def resize_header(message: bytes, other: bytes, chance: random.Random) -> bytes:
    length = chance.choice((0, 2, 2**20, 2**31, 2**63, 2**64 - 1, max(header_end(message) - 8 + 1, 0)))
    return struct.pack("<Q", length) + message[8:]


def restamp(message: bytes) -> bytes:
    """The message with the checksum that fits it, if there is still a place for one."""
    unset, count = re.subn(
        rb'(\\"checksum\\": \\")[0-9a-f]{32}', rb"\g<1>" + UNSET.encode(), message, count=1
    )
    return stamp(unset) if count else message


def is_word(text: bytes, at: int) -> bool:
    return at < len(text) and (chr(text[at]).isalnum() or text[at] in b"._-")


def header_end(message: bytes) -> int:
    return min(len(message), 8 + int.from_bytes(message[:8], "little"))


def decode_mutations(count: int, seed: int, folder: Path) -> dict[str, int]:
    """How many mutated messages were refused, and how many still made sense."""
    memory = MaskMemory(folder)
    pool = messages(memory)
    chance = random.Random(seed)
    outcomes = {"refused": 0, "decoded": 0}
    for _ in range(count):
        message, decoder = chance.choice(pool)
        changed = mutate(message, chance.choice(pool)[0], chance)
        if chance.random() < 0.9:  # whoever means harm writes the right checksum
            changed = restamp(changed)
        try:
            decoder(changed)
            outcomes["decoded"] += 1
        except (MessageError, MaskMissingError):
            outcomes["refused"] += 1
        except BaseException:
            (folder / "culprit").write_bytes(changed)
            raise
    return outcomes


def main() -> None:
    torch.set_num_threads(1)
    count, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with tempfile.TemporaryDirectory() as folder:
        decode_mutations(100, 0, Path(folder))  # so that whatever is loaded late is loaded
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + SPARE_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        signal.alarm(max(60, count // 100))  # hangs end the process
        print(decode_mutations(count, seed, Path(folder)))


if __name__ == "__main__":
    main()
