"""One device: bytes in, bytes out. Nothing here imports PyTorch."""
