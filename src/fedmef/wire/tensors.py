"""The safetensors format: arrays as bytes, and back.

The library of that name copies every array twice, and where memory is short it ends in a Rust panic that can
hang the process for ever. Here an array that is read is a view of the message, and too little memory is a
`MemoryError`. What is written is, to the byte, what the library writes.
"""

import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedmef.errors import MessageError
from fedmef.sparsity.arrays import Array

# In the library's order: what needs the largest alignment is written first, so all arrays are aligned.
DTYPES = {
    name: np.dtype(code)
    for name, code in {
        "U64": "<u8",
        "I64": "<i8",
        "F64": "<f8",
        "C64": "<c8",
        "F32": "<f4",
        "U32": "<u4",
        "I32": "<i4",
        "F16": "<f2",
        "U16": "<u2",
        "I16": "<i2",
        "I8": "i1",
        "U8": "u1",
        "BOOL": "?",
    }.items()
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
RANKS = {dtype: rank for rank, dtype in enumerate(NAMES)}
ALIGNMENT = 8
MOST_DIMENSIONS = 32


def pack(arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> tuple[bytes, list[memoryview]]:
    """A file's header, and what comes after it: the arrays, not copied."""
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    contents: list[memoryview] = []
    end = 0
    if unknown := {array.dtype for array in arrays.values()} - NAMES.keys():
        raise ValueError(f"arrays of {unknown.pop()} cannot be sent")
    for name, given in sorted(arrays.items(), key=lambda item: (RANKS[item[1].dtype], item[0])):
        array = np.asarray(given, order="C")
        begin, end = end, end + array.nbytes
        entries[name] = {
            "dtype": NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
        contents.append(array.reshape(-1).view(np.uint8).data)
    head = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    head += b" " * (-len(head) % ALIGNMENT)
    return struct.pack("<Q", len(head)) + head, contents


def unpack(message: bytes) -> dict[str, Array]:
    """The arrays of a message whose header is known to be there, as views of it that nobody can write to.

    Raises `MessageError` unless types, shapes and offsets fit each other and account for every byte.
    """
    (length,) = struct.unpack_from("<Q", message)
    start = 8 + length
    entries = json.loads(message[8:start])
    del entries["__metadata__"]
    arrays: dict[str, Array] = {}
    reached = 0
    try:
        for name, entry in sorted(entries.items(), key=lambda item: _offsets(item[1])):
            dtype, shape, (begin, end) = DTYPES[entry["dtype"]], _shape(entry), _offsets(entry)
            if begin != reached or end - begin != math.prod(shape) * dtype.itemsize:
                raise MessageError(f"the place of {name!r} does not fit its shape or its neighbours")
            reached = end
            array: Array = np.ndarray(shape, dtype, message, start + begin)
            array.flags.writeable = False
            if dtype == np.bool_ and array.view(np.uint8).max(initial=0) > 1:
                raise MessageError(f"{name!r} has truth values that are neither 0 nor 1")
            arrays[name] = array if array.flags.aligned else array.copy()
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        raise MessageError(f"not a safetensors message: {error}") from error
    if start + reached != len(message):
        raise MessageError("the arrays do not account for every byte of the message")
    return arrays


def _offsets(entry: Any) -> tuple[int, int]:
    begin, end = map(_count, entry["data_offsets"])
    return begin, end


def _shape(entry: Any) -> tuple[int, ...]:
    if len(entry["shape"]) > MOST_DIMENSIONS:
        raise ValueError("too many dimensions")
    return tuple(map(_count, entry["shape"]))


def _count(number: object) -> int:
    if type(number) is not int or not 0 <= number < 2**63:
        raise ValueError(f"{number!r} is no size")
    return number
