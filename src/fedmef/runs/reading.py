"""Files of a run's directory, which may come from anybody: ordinary files only, and none too large."""

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmef.errors import MessageError, UserError
from fedmef.sparsity.arrays import Array
from fedmef.wire.container import (
    FILE_VERSION,
    MAXIMUM_BYTES,
    MAXIMUM_HEADER_BYTES,
    Header,
    decode,
    encode,
    read_header,
)

PIECE_BYTES = 2**20
AGAIN = "copy the run again, or repeat it"  # what to do with a damaged one
LENGTH_BYTES = 8  # before the header of a container


def read_ordinary(file: Path, limit: int, first: int | None = None) -> bytes:
    """A file's content, or only its `first` bytes.

    A pipe would be waited for and a device never ends: both are refused, as is what is larger than we write.
    Raises `FileNotFoundError` when there is none, and `UserError` for all else.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise _unreadable(file, error) from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise UserError(f"{file} is damaged: it is no ordinary file")
        if found.st_size > limit:
            raise UserError(f"{file} is larger than {limit:,} bytes: it is damaged, or not what it says")
        return _read(descriptor, limit if first is None else min(first, limit))
    except OSError as error:
        raise _unreadable(file, error) from None
    finally:
        os.close(descriptor)


def read_container(file: Path) -> tuple[dict[str, Array], Header]:
    """Arrays and header of a container; before they are read, the file must have the length that it says.

    Raises `FileNotFoundError` or `UserError`.
    """
    try:
        length = int.from_bytes(read_ordinary(file, MAXIMUM_BYTES, LENGTH_BYTES), "little")
        if length > MAXIMUM_HEADER_BYTES:
            raise MessageError(f"the header claims {length} bytes")
        start = read_ordinary(file, MAXIMUM_BYTES, LENGTH_BYTES + length)
        read_header(start, FILE_VERSION)
        if file.stat().st_size != len(start) + _data_bytes(start):
            raise MessageError("it is not complete, or longer than it says")
        return decode(read_ordinary(file, MAXIMUM_BYTES))
    except MessageError as error:
        raise UserError(f"{file} is damaged: {error}; {AGAIN}") from None


def container_bytes(arrays: Mapping[str, Array], header: Mapping[str, Any], file: Path) -> bytes:
    """What to write; raises `UserError` for a container that could not be read again."""
    content = encode(arrays, dict(header))
    if int.from_bytes(content[:LENGTH_BYTES], "little") > MAXIMUM_HEADER_BYTES:
        raise UserError(f"{file}: the model has too many arrays for a file")
    return bounded(content, MAXIMUM_BYTES, file)


def bounded(content: bytes, limit: int, file: Path) -> bytes:
    """The content, if a reader will take it; what could not be read again is not written."""
    if len(content) > limit:
        raise UserError(f"{file} would have {len(content):,} bytes: more than {limit:,} are never read")
    return content


def _read(descriptor: int, limit: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while size < limit and (piece := os.read(descriptor, min(PIECE_BYTES, limit - size))):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


def _data_bytes(start: bytes) -> int:
    """Of all arrays, as the header says."""
    try:
        table = json.loads(start[LENGTH_BYTES:])
        ends = [entry["data_offsets"][1] for name, entry in table.items() if name != "__metadata__"]
        return int(max(ends, default=0))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError, OverflowError):
        raise MessageError("not a safetensors message") from None


def _unreadable(file: Path, error: Exception) -> UserError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return UserError(f"{file} is damaged, or cannot be read: {reason}")
