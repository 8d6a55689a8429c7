"""The compiled extension, and what makes its programs from a network. Nothing here imports PyTorch."""
