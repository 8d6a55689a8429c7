"""What travels between server and devices."""

from fedmef.wire.messages import Header, MessageError, decode, encode

__all__ = ["Header", "MessageError", "decode", "encode"]
