"""Arrays and a header as bytes, and back."""

import contextlib
import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load

from fedmef.errors import MessageError
from fedmef.sparsity.arrays import Array
from fedmef.wire.container import (
    FILE_VERSION,
    MAXIMUM_HEADER_BYTES,
    MESSAGE_VERSION,
    decode,
    encode,
    read_header,
)

ARRAYS: dict[str, Array] = {
    "values": np.array([1.5, -2.0], dtype=np.float32),
    "mask": np.array([5], dtype=np.uint8),
    "steps": np.array(7),
    "none": np.zeros((0, 3), dtype=np.float16),
    "bfloat16": np.array([[1, 2]], dtype=np.uint16),
}


def test_a_message_comes_back_as_it_was() -> None:
    arrays, header = decode(encode(ARRAYS, {"round": 3}))
    assert header == {"round": 3}
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        assert arrays[name].shape == array.shape
        assert np.array_equal(arrays[name], array)


def test_a_message_is_a_safetensors_file() -> None:
    assert np.array_equal(load(encode(ARRAYS, {}))["values"], ARRAYS["values"])


def test_the_same_content_gives_the_same_bytes_in_any_order() -> None:
    backwards = dict(reversed(ARRAYS.items()))
    assert encode(ARRAYS, {"a": 1, "b": 2}) == encode(backwards, {"b": 2, "a": 1})


def test_an_array_with_two_names_is_sent_under_both() -> None:
    array = np.ones(3)
    arrays, _ = decode(encode({"one": array, "other": array}, {}))
    assert np.array_equal(arrays["one"], arrays["other"])


@pytest.mark.parametrize(
    "array", [np.arange(12.0).reshape(3, 4).T, np.arange(12.0)[::2], np.arange(12.0)[::-1]]
)
def test_views_are_sent_as_what_they_show(array: Array) -> None:
    assert np.array_equal(decode(encode({"view": array}, {}))[0]["view"], array)


def test_a_message_is_little_larger_than_its_arrays() -> None:
    values = np.zeros(100_000, dtype=np.float32)
    assert len(encode({"values": values}, {})) < values.nbytes + 500


def test_a_header_must_be_json_that_anybody_can_read() -> None:
    with pytest.raises(ValueError, match="JSON"):
        encode({}, {"loss": float("nan")})


@pytest.mark.parametrize("end", [0, 4, 8, 30, -1])
def test_a_message_cut_short_is_refused(end: int) -> None:
    with pytest.raises(MessageError):
        decode(encode(ARRAYS, {})[:end])


def container(header: str) -> bytes:
    head = header.encode()
    return struct.pack("<Q", len(head)) + head


def test_another_version_is_refused() -> None:
    with pytest.raises(MessageError, match="version 99"):
        decode(container(json.dumps({"__metadata__": {"fedmef": '{"version": 99}'}})))


def test_a_file_is_no_message_and_the_other_way_round() -> None:
    with pytest.raises(MessageError, match=f"has version {FILE_VERSION}, this program reads"):
        decode(encode({}, {}), MESSAGE_VERSION)
    with pytest.raises(MessageError, match=f"has version {MESSAGE_VERSION}, this program reads"):
        decode(encode({}, {}, MESSAGE_VERSION))


def test_the_header_can_be_read_alone() -> None:
    message = encode(ARRAYS, {"round": 3}, MESSAGE_VERSION)
    head = message[: 8 + int.from_bytes(message[:8], "little")]
    assert read_header(head, MESSAGE_VERSION)["round"] == 3


@pytest.mark.parametrize(
    "header",
    [
        '{"__metadata__": {}}',
        "[]",
        "{}",
        "null",
        '{"__metadata__": null}',
        '{"__metadata__": []}',
        '{"__metadata__": {"fedmef": "[]"}}',
        '{"__metadata__": {"fedmef": "3"}}',
        '{"__metadata__": {"fedmef": 3}}',
        '{"__metadata__": {"fedmef": "{}"}}',
        '{"__metadata__": {"fedmef": "{\\"version\\": 4}"}}',
        "[",
        "[" * 200_000,
        '{"__metadata__": {"fedmef": "' + "[" * 200_000 + '"}}',
        '{"__metadata__": {"fedmef": "{\\"version\\": ' + "9" * 5000 + '}"}}',
        "\x80",
    ],
    ids=lambda header: ascii(header[:50]),
)
def test_a_container_that_is_not_ours_is_refused(header: str) -> None:
    with pytest.raises(MessageError):
        decode(container(header))


@pytest.mark.parametrize("length", [3, MAXIMUM_HEADER_BYTES + 1, 2**31, 2**62, 2**64 - 1])
def test_a_header_that_claims_to_be_huge_is_refused(length: int) -> None:
    with pytest.raises(MessageError, match=f"the header claims {length} bytes"):
        decode(struct.pack("<Q", length) + b"{}")


@settings(max_examples=300, deadline=None)
@given(position=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_a_changed_byte_gives_a_message_or_an_error_of_ours(position: int, byte: int) -> None:
    message = bytearray(encode(ARRAYS, {"round": 3}))
    message[position % len(message)] = byte
    with contextlib.suppress(MessageError):
        decode(bytes(message))
