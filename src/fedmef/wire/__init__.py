"""What travels between server and devices."""

from fedmef.wire.container import MAXIMUM_BYTES, Header, decode, encode
from fedmef.wire.errors import MaskMissingError, MessageError, ValueRangeError
from fedmef.wire.mask_store import MaskMemory, mask_version
from fedmef.wire.sizes import Rule, Scheme, choose_scheme, scheme_bits

__all__ = [
    "MAXIMUM_BYTES",
    "Header",
    "MaskMemory",
    "MaskMissingError",
    "MessageError",
    "Rule",
    "Scheme",
    "ValueRangeError",
    "choose_scheme",
    "decode",
    "encode",
    "mask_version",
    "scheme_bits",
]
