import pytest
import torch

from fedmef.wire import MessageError, decode, encode

MESSAGE = encode({"values": torch.arange(5.0), "mask": torch.tensor([7], dtype=torch.uint8)}, {"round": 3})


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


def test_a_header_may_not_name_a_checksum_of_its_own() -> None:
    with pytest.raises(ValueError, match="checksum"):
        encode({}, {"checksum": "mine"})
