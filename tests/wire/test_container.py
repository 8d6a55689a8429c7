import contextlib
import json
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmef.wire import MessageError, decode, encode

TENSORS = {"values": torch.tensor([1.5, -2.0]), "mask": torch.tensor([5], dtype=torch.uint8)}


def test_a_message_comes_back_as_it_was() -> None:
    tensors, header = decode(encode(TENSORS, {"round": 3}))
    assert header == {"round": 3}
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)


def test_the_same_content_gives_the_same_bytes_in_any_order() -> None:
    backwards = dict(reversed(TENSORS.items()))
    assert encode(TENSORS, {"a": 1, "b": 2}) == encode(backwards, {"b": 2, "a": 1})


def test_a_tensor_with_two_names_is_sent_under_both() -> None:
    tensor = torch.ones(3)
    tensors, _ = decode(encode({"one": tensor, "other": tensor}, {}))
    assert torch.equal(tensors["one"], tensors["other"])


def test_a_message_is_little_larger_than_its_tensors() -> None:
    values = torch.zeros(100_000)
    assert len(encode({"values": values}, {})) < values.nbytes + 500


@pytest.mark.parametrize("end", [0, 4, 8, 30, -1])
def test_a_message_cut_short_is_refused(end: int) -> None:
    with pytest.raises(MessageError):
        decode(encode(TENSORS, {})[:end])


def test_another_version_is_refused() -> None:
    head = json.dumps({"__metadata__": {"fedmef": '{"version": 99}'}}).encode()
    with pytest.raises(MessageError, match="version 99"):
        decode(struct.pack("<Q", len(head)) + head)


@pytest.mark.parametrize(
    "metadata", ['{"__metadata__": {}}', "[]", "{}", '{"__metadata__": {"fedmef": "[]"}}', "["]
)
def test_a_container_that_is_not_ours_is_refused(metadata: str) -> None:
    head = metadata.encode()
    with pytest.raises(MessageError):
        decode(struct.pack("<Q", len(head)) + head)


def test_a_header_that_claims_to_be_huge_is_refused() -> None:
    with pytest.raises(MessageError):
        decode(struct.pack("<Q", 2**62) + b"{}")


@settings(max_examples=300, deadline=None)
@given(position=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_a_changed_byte_gives_a_message_or_an_error_of_ours(position: int, byte: int) -> None:
    message = bytearray(encode(TENSORS, {"round": 3}))
    message[position % len(message)] = byte
    with contextlib.suppress(MessageError):
        decode(bytes(message))
