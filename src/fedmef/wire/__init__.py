"""What travels between server and devices."""

from fedmef.wire.messages import MAXIMUM_BYTES, Header, MessageError, decode, encode

__all__ = ["MAXIMUM_BYTES", "Header", "MessageError", "decode", "encode"]
