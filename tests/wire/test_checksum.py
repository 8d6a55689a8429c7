"""A changed message is noticed."""

import numpy as np
import pytest

from fedmef.errors import MessageError
from fedmef.wire.checksum import UNSET, is_intact, stamp
from fedmef.wire.container import decode, encode

MESSAGE = encode({"values": np.arange(5.0), "mask": np.array([7], dtype=np.uint8)}, {"round": 3})


def test_every_changed_bit_is_noticed() -> None:
    for position in range(len(MESSAGE)):
        for bit in range(8):
            damaged = bytearray(MESSAGE)
            damaged[position] ^= 1 << bit
            with pytest.raises(MessageError):
                decode(bytes(damaged))


def test_something_added_at_the_end_is_noticed() -> None:
    with pytest.raises(MessageError):
        decode(MESSAGE + b"\0")


def test_a_header_may_not_name_a_checksum_or_version_of_its_own() -> None:
    with pytest.raises(ValueError, match="checksum"):
        encode({}, {"checksum": "mine"})
    with pytest.raises(ValueError, match="version"):
        encode({}, {"version": 99})


def test_a_stamped_message_is_as_long_as_before_and_intact() -> None:
    unstamped = b'before \\"checksum\\": \\"' + UNSET.encode() + b'\\" after'
    stamped = stamp(unstamped)
    assert len(stamped) == len(unstamped)
    checksum = stamped[len(b'before \\"checksum\\": \\"') :][:32].decode()
    assert is_intact(stamped, checksum)
    assert not is_intact(stamped, UNSET)
    assert not is_intact(stamped + b"!", checksum)


@pytest.mark.parametrize("checksum", ["", "None", "\ud800", "0" * 10_000])
def test_a_checksum_that_is_none_is_never_right(checksum: str) -> None:
    assert not is_intact(MESSAGE, checksum)
