"""Whatever happens to a message on the way: a typed error, or a message that still makes sense."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedmef.wire import MaskMemory
from tests.wire.mutations import decode_mutations, messages

ROOT = Path(__file__).parents[2]


def test_every_kind_of_message_decodes_as_it_is(tmp_path: Path) -> None:
    for message, decoder in messages(MaskMemory(tmp_path)):
        decoder(message)


def test_mutated_messages_give_a_typed_error_or_still_make_sense(tmp_path: Path) -> None:
    outcomes = decode_mutations(3000, 1, tmp_path)
    assert outcomes["refused"] > 2000
    assert outcomes["decoded"] > 50


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the limit of memory is Linux's")
def test_a_hundred_thousand_mutated_messages_in_little_memory() -> None:
    command = [sys.executable, "-m", "tests.wire.mutations", "100000"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
