"""Arrays and a small JSON header as bytes: a safetensors container. Never pickle.

Everything that a server and a device exchange, in every engine, and every checkpoint and model file is one of
these, so the traffic that is printed is the traffic that there was. Files hold plain arrays; messages hold
codes of sparse ones (`fedmef.wire.broadcast`), and have a version of their own.
"""

import json
import struct
from collections.abc import Mapping
from typing import Any

from fedmef.errors import MessageError
from fedmef.sparsity.arrays import Array
from fedmef.wire.checksum import UNSET, is_intact, stamp
from fedmef.wire.tensors import pack, unpack

FILE_VERSION = 4
MESSAGE_VERSION = 6
MAXIMUM_BYTES = 2**32
MAXIMUM_HEADER_BYTES = 2**20

Header = dict[str, Any]


def encode(arrays: Mapping[str, Array], header: Header, version: int = FILE_VERSION) -> bytes:
    """Pack arrays and a JSON-able header. The same content gives the same bytes."""
    if reserved := header.keys() & {"version", "checksum"}:
        raise ValueError(f"the header's {min(reserved)} is written here")
    known = {"version": version, "checksum": UNSET, **header}
    metadata = {"fedmef": json.dumps(known, sort_keys=True, allow_nan=False)}
    head, contents = pack(arrays, metadata)
    return stamp(head, *contents)


def decode(message: bytes, version: int = FILE_VERSION) -> tuple[dict[str, Array], Header]:
    """The inverse of `encode`; raises `MessageError` for anything else.

    Types, shapes and offsets are checked first. The arrays are views of the message.
    """
    header = read_header(message, version)
    if not is_intact(message, str(header.pop("checksum", None))):
        raise MessageError("the checksum does not match: the message is damaged or not complete")
    return unpack(message), header


def checksum_of(message: bytes) -> str:
    """What tells a message from all others: its checksum, as it says; `decode` looks whether that is so."""
    checksum = read_header(message, MESSAGE_VERSION).get("checksum")
    return checksum if isinstance(checksum, str) else ""


def read_header(message: bytes, readable: int) -> Header:
    """The header of a message, with nothing else checked but its version."""
    if len(message) > MAXIMUM_BYTES:
        raise MessageError(f"a message of {len(message)} bytes is larger than the limit of {MAXIMUM_BYTES}")
    try:
        (length,) = struct.unpack_from("<Q", message)
        if length > min(MAXIMUM_HEADER_BYTES, len(message) - 8):
            raise MessageError(f"the header claims {length} bytes")
        metadata = json.loads(message[8 : 8 + length])["__metadata__"]
        header = json.loads(metadata["fedmef"])
        version = header.pop("version")
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MessageError("not a fedmef message: it has no readable header") from error
    if version != readable:
        raise MessageError(f"the message has version {version!r}, this program reads version {readable}")
    if not isinstance(header, dict):
        raise MessageError("the header is not a table")
    return header
