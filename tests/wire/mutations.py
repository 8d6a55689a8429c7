"""Messages of every kind, small but real, and what can happen to them on the way.

As a program it decodes so many mutated messages with only so much memory to spare, and ends with the first
that gives anything but a model, an update or an error of ours:

    python -m tests.wire.mutations MESSAGES [SEED]
"""

import json
import random
import re
import resource
import signal
import struct
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedmef.errors import MessageError, NetworkError, NotHeldError
from fedmef.sparsity.growth import GrowthScores
from fedmef.sparsity.model import Model
from fedmef.sparsity.network import Network
from fedmef.sparsity.operations import BatchNorm
from fedmef.wire.broadcast import NETWORK, decode_broadcast, encode_broadcast
from fedmef.wire.checksum import UNSET, stamp
from fedmef.wire.container import MESSAGE_VERSION, decode, encode
from fedmef.wire.job import Job
from fedmef.wire.schemes import SCHEMES
from fedmef.wire.store import Store, mask_version
from fedmef.wire.update import Extras, Update, decode_update, encode_update
from tests.sparsity.networks import chain, convolution, pooled, random_model

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


NETWORKS = (
    chain(
        convolution("0", "input", (8, 3, 3, 3), sparse=True, bias=True),
        BatchNorm(name="1", inputs=("0",), module="1", channels=8),
        convolution("2", "1", (8, 8, 3, 3), sparse=True, bias=True),
        convolution("3", "2", (2, 8, 1, 1), sparse=True, bias=True),
        *pooled("3"),
    ),
    chain(
        convolution("0", "input", (4, 3, 3, 3), bias=True),
        BatchNorm(name="1", inputs=("0",), module="1", channels=4),
        *pooled("1"),
    ),
)
SPARSE, DENSE = NETWORKS
SPARSITIES = {"0": 0.9, "2": 0.6, "3": 0.0}
JOB = Job(method="fedmef", round=3, seed=7, learning_rate=0.1, initial_rate=0.5, adjustment_rate=0.4)


def sparse_model(seed: int = 0) -> Model:
    """Every layer of another sparsity: between them their masks take every scheme."""
    model, random_bits = random_model(SPARSE, 0.0, seed), np.random.default_rng(seed)
    for name, sparsity in SPARSITIES.items():
        kept = random_bits.random(SPARSE.sparse_layers[name].size) >= sparsity
        model.assign(name, np.flatnonzero(kept), model.values(name)[kept])
    return model


def messages(store: Store) -> list[tuple[bytes, Decode]]:
    """A message of every kind and what decodes it; the store gets what they build on."""
    model, dense = sparse_model(), random_model(DENSE)
    (first, *_) = known = model.masks()
    closely = {**known, first: known[first] ^ np.array([1] + [0] * 26, dtype=np.uint8)}
    store.remember_network(SPARSE)
    for held in (known, sparse_model(1).masks(), closely):
        store.remember_masks(held, mask_version(held))
    down = [encode_broadcast(model, replace(JOB, wire_scheme=scheme)) for scheme in SCHEMES]
    down += [encode_broadcast(model, replace(JOB, wire_dtype=dtype)) for dtype in ("fp16", "bf16")]
    down += [encode_broadcast(model, JOB, known=held) for held in (known, closely)]
    down += [encode_broadcast(model, JOB, known=held, knows_network=True) for held in (None, known, closely)]
    down.append(encode_broadcast(dense, JOB))
    growth = {"2": GrowthScores(np.arange(1, 570, 7), np.ones(82, dtype=np.float32))}
    extras = Extras(growth, {"importance": np.ones(3), "time": np.array(2)}, known)
    update = Update(1, 5, 0.5, {name: model.state[name] for name in SPARSE.floats}, extras)
    up = [encode_update(update, SPARSE, scheme=scheme) for scheme in SCHEMES]
    up += [
        encode_update(replace(update, extras=Extras()), SPARSE, wire_dtype=dtype)
        for dtype in ("fp16", "bf16")
    ]
    return [
        *((message, lambda content: decode_broadcast(content, store)) for message in down),
        *((message, lambda content: decode_update(content, SPARSE)) for message in up),
        (encode(model.state, {"next_round": 3}), decode),
    ]


def mutate(message: bytes, other: bytes, chance: random.Random) -> bytes:
    """One or a few changes."""
    if chance.random() < 0.3:
        message = edit_network(message, chance)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        change = chance.choice(
            (flip, flip_behind_header, cut, extend, splice, edit_header, edit_header, resize_header)
        )
        message = change(message, other, chance)
    return message


def edit_network(message: bytes, chance: random.Random) -> bytes:
    """A few places of the network become others, and the digest is put right, as whoever means harm does."""
    try:
        arrays, header = decode(message, MESSAGE_VERSION)
        content = arrays[NETWORK].tobytes()
    except (MessageError, KeyError):
        return message  # a message without a network
    for _ in range(chance.choice((1, 1, 2, 4))):
        content = edit_words(content, chance) if chance.random() < 0.7 else move_piece(content, chance)
    with suppress(NetworkError):
        header["network"] = Network.from_json(content).digest
    arrays[NETWORK] = np.frombuffer(content, dtype=np.uint8)
    return encode(arrays, header, MESSAGE_VERSION)


def move_piece(content: bytes, chance: random.Random) -> bytes:
    """An operation goes, comes twice, or changes its place; or two fields exchange their values."""
    try:
        table: Any = json.loads(content)
        operations: list[Any] = table["operations"]
        one, other = chance.randrange(len(operations)), chance.randrange(len(operations))
        match chance.randrange(4):
            case 0:
                del operations[one]
            case 1:
                operations.insert(other, operations[one])
            case 2:
                operations[one], operations[other] = operations[other], operations[one]
            case 3:
                fields = [*operations[one]]
                name = chance.choice(fields)
                operations[one][name] = operations[other].get(name, operations[one][chance.choice(fields)])
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return content  # no network any more
    return json.dumps(table).encode()


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
    header = edit_words(message[8:end], chance)
    return struct.pack("<Q", len(header)) + header + message[end:]


def edit_words(text: bytes, chance: random.Random) -> bytes:
    """A word or a number becomes another."""
    starts = [at for at in range(1, len(text)) if is_word(text, at) and not is_word(text, at - 1)]
    if not starts:
        return text
    start = chance.choice(starts)
    stop = start
    while is_word(text, stop):
        stop += 1
    words = (*WORDS, *NUMBERS, str(chance.randrange(1000)).encode(), chance.choice(starts).to_bytes(2, "big"))
    return text[:start] + chance.choice(words) + text[stop:]


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
    pool = messages(Store(folder))
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
        except (MessageError, NotHeldError):
            outcomes["refused"] += 1
        except BaseException:
            (folder / "culprit").write_bytes(changed)
            raise
    return outcomes


def main() -> None:
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
