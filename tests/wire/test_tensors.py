"""The safetensors format: to the byte the library's, and nothing is copied."""

import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load, save

from fedmef.errors import MessageError
from fedmef.sparsity.arrays import Array
from fedmef.wire.tensors import DTYPES, pack, unpack

names = st.text(st.characters(codec="utf-8"), max_size=8).filter(lambda name: name != "__metadata__")
some_arrays = st.dictionaries(
    names,
    st.sampled_from(list(DTYPES.values())).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    ),
    max_size=6,
)


def packed(arrays: dict[str, Array], metadata: dict[str, str] | None = None) -> bytes:
    head, contents = pack(arrays, metadata or {"fedmef": "{}"})
    return b"".join((head, *contents))


@given(some_arrays, names)
def test_what_is_written_is_what_the_library_writes(arrays: dict[str, Array], text: str) -> None:
    assert packed(arrays, {"fedmef": text}) == save(arrays, {"fedmef": text})


@given(some_arrays)
def test_what_is_read_is_what_the_library_reads(arrays: dict[str, Array]) -> None:
    message = save(arrays, {"fedmef": "{}"})
    found, expected = unpack(message), load(message)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()
        assert found[name].flags.aligned


def test_an_array_that_is_read_is_a_view_that_cannot_be_written() -> None:
    message = packed({"values": np.arange(9, dtype=np.float32), "mask": np.ones(3, np.uint8)})
    for array in unpack(message).values():
        assert np.shares_memory(array, np.frombuffer(message, np.uint8))
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_an_array_at_an_odd_place_is_copied_to_an_even_one() -> None:
    entries = {
        "byte": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "float": {"dtype": "F32", "shape": [1], "data_offsets": [1, 5]},
    }
    array = unpack(message_of(entries, b"\x07" + struct.pack("<f", 1.5)))["float"]
    assert array.flags.aligned
    assert array.tolist() == [1.5]


def message_of(entries: dict[str, Any], content: bytes) -> bytes:
    head = json.dumps({"__metadata__": {}, **entries}).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + content


@pytest.mark.parametrize(
    "changed",
    [
        {"dtype": "F8"},
        {"dtype": None},
        {"dtype": []},
        {"shape": [3]},
        {"shape": [-2]},
        {"shape": [2.0]},
        {"shape": [True]},
        {"shape": None},
        {"shape": [2**63]},
        {"shape": [2**62, 2**62, 0]},
        {"shape": [1] * 100 + [2]},
        {"shape": "22"},
        {"data_offsets": [0, 9]},
        {"data_offsets": [1, 9]},
        {"data_offsets": [0, 4]},
        {"data_offsets": [8, 0]},
        {"data_offsets": [-8, 0]},
        {"data_offsets": [0]},
        {"data_offsets": [0, 8, 8]},
        {"data_offsets": [0, 1e1]},
        {"data_offsets": {}},
        {"data_offsets": None},
    ],
)
def test_places_and_shapes_that_do_not_fit_are_refused(changed: dict[str, object]) -> None:
    right = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    assert unpack(message_of({"values": right}, bytes(8)))["values"].tolist() == [0, 0]
    with pytest.raises(MessageError):
        unpack(message_of({"values": right | changed}, bytes(8)))


@pytest.mark.parametrize("entry", [None, [], 3, "text", {}])
def test_an_entry_that_is_no_table_is_refused(entry: object) -> None:
    with pytest.raises(MessageError):
        unpack(message_of({"values": entry}, b""))


def test_gaps_overlaps_and_what_is_left_over_are_refused() -> None:
    def entry(begin: int, end: int) -> dict[str, object]:
        return {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}

    assert len(unpack(message_of({"a": entry(0, 4), "b": entry(4, 8)}, bytes(8)))) == 2
    for second in (entry(5, 8), entry(3, 8), entry(0, 4), entry(4, 7)):
        with pytest.raises(MessageError):
            unpack(message_of({"a": entry(0, 4), "b": second}, bytes(8)))


def test_truth_values_are_0_or_1() -> None:
    entry = {"dtype": "BOOL", "shape": [2], "data_offsets": [0, 2]}
    assert unpack(message_of({"bits": entry}, b"\0\1"))["bits"].tolist() == [False, True]
    with pytest.raises(MessageError, match="truth"):
        unpack(message_of({"bits": entry}, b"\0\2"))
