"""One device: bytes in, bytes out."""
