"""Whatever happens to a message on the way: a typed error, or a message that still makes sense."""

import json
import random
import struct
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pytest

from fedmef.errors import MessageError, NotHeldError
from fedmef.wire.broadcast import decode_broadcast
from fedmef.wire.checksum import UNSET
from fedmef.wire.container import MESSAGE_VERSION
from fedmef.wire.store import Store
from fedmef.wire.update import decode_update
from tests.wire.mutations import JOB, SPARSE, decode_mutations, edit_network, messages, restamp

ROOT = Path(__file__).parents[2]


def test_every_kind_of_message_decodes_as_it_is(tmp_path: Path) -> None:
    for message, decoder in messages(Store(tmp_path)):
        decoder(message)


def test_mutated_messages_give_a_typed_error_or_still_make_sense(tmp_path: Path) -> None:
    outcomes = decode_mutations(3000, 1, tmp_path)
    assert outcomes["refused"] > 2000
    assert outcomes["decoded"] > 50


def test_changed_networks_are_found_out_later_than_by_their_digest(tmp_path: Path) -> None:
    """Otherwise the other tests would only show that a digest is checked."""
    reasons: set[str] = set()
    chance = random.Random(0)
    for message, decoder in messages(Store(tmp_path)) * 30:
        try:
            decoder(edit_network(message, chance))
            reasons.add("decoded")
        except (MessageError, NotHeldError) as error:
            reasons.add(str(error))
    assert "decoded" in reasons
    assert "the network is not the one that the message names" not in reasons
    assert len(reasons) > 100


HEADER = {
    "version": MESSAGE_VERSION,
    "checksum": UNSET,
    "job": asdict(JOB),
    "network": SPARSE.digest,
    "masks": "0" * 32,
    "device": 1,
    "samples": 1,
    "loss": "0",
    "round": 1,
    "answers": "0" * 32,
}


@pytest.mark.parametrize("field", [*HEADER, "known", "other"])
def test_brackets_in_a_header_are_harmless_however_deep_they_are(field: str, tmp_path: Path) -> None:
    """As deep as the parser just follows: whatever is done with them later must not go as deep again."""
    most = sys.getrecursionlimit()
    for depth in (1, 2, *range(most - 200, most + 10, 3)):
        text = json.dumps({**HEADER, field: "here"}, sort_keys=True)
        head = json.dumps({"__metadata__": {"fedmef": text.replace('"here"', "[" * depth + "]" * depth)}})
        padded = head.encode().ljust(-(-len(head) // 8) * 8)
        message = restamp(struct.pack("<Q", len(padded)) + padded)
        with suppress(MessageError, NotHeldError):
            decode_broadcast(message, Store(tmp_path))
        with suppress(MessageError):
            decode_update(message, SPARSE)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the limit of memory is Linux's")
def test_a_hundred_thousand_mutated_messages_in_little_memory() -> None:
    command = [sys.executable, "-m", "tests.wire.mutations", "100000"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
