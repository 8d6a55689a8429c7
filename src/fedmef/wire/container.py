"""Messages as bytes: a safetensors container of tensors with a small JSON header. Never pickle.

Everything that a server and a device exchange, in every engine, and every checkpoint and model file is one of
these, so that the traffic that is printed is the traffic that there was. Files hold plain tensors; messages
hold codes of sparse ones (`fedmef.wire.exchange`), and have a version of their own.
"""

import json
import struct
from collections.abc import Mapping
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedmef.wire.checksum import UNSET, is_intact, stamp
from fedmef.wire.errors import MessageError

FILE_VERSION = 3
MESSAGE_VERSION = 4
MAXIMUM_BYTES = 2**32
MAXIMUM_HEADER_BYTES = 2**20

Header = dict[str, Any]


def encode(tensors: Mapping[str, Tensor], header: Header, version: int = FILE_VERSION) -> bytes:
    """Pack tensors and a JSON-able header. The same content gives the same bytes."""
    if reserved := header.keys() & {"version", "checksum"}:
        raise ValueError(f"the header's {min(reserved)} is written here")
    known = {"version": version, "checksum": UNSET, **header}
    metadata = {"fedmef": json.dumps(known, sort_keys=True, allow_nan=False)}
    contents: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        content = tensor.detach().cpu().contiguous()
        if content.untyped_storage().data_ptr() in seen:  # a module may have two names
            content = content.clone()
        seen.add(content.untyped_storage().data_ptr())
        contents[name] = content
    return stamp(bytes(save(contents, metadata)))


def decode(message: bytes, version: int = FILE_VERSION) -> tuple[dict[str, Tensor], Header]:
    """The inverse of `encode`; raises `MessageError` for anything else.

    Types, shapes and offsets are checked before anything is made of them, and then the tensors take no more
    than the message itself.
    """
    if len(message) > MAXIMUM_BYTES:
        raise MessageError(f"a message of {len(message)} bytes is larger than the limit of {MAXIMUM_BYTES}")
    header = _read_header(message, version)
    if not is_intact(message, str(header.pop("checksum", None))):
        raise MessageError("the checksum does not fit: the message was damaged on its way, or is not whole")
    try:
        return load(message), header
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError) as error:
        raise MessageError(f"not a safetensors message: {error}") from error


def _read_header(message: bytes, readable: int) -> Header:
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
