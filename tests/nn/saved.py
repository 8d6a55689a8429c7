"""What autograd keeps for the backward pass, seen through its own hooks."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def saved_tensors() -> Iterator[list[Tensor]]:
    """Every tensor that is saved inside the block, in order."""
    seen: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        seen.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield seen


def storages(tensors: Iterator[Tensor] | list[Tensor]) -> dict[int, int]:
    """Address and bytes of every storage, each once."""
    return {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}


def saved_bytes(model: nn.Module, images: Tensor, labels: Tensor) -> int:
    """Bytes of the storages that a forward pass saves, without parameters, buffers and the images."""
    with saved_tensors() as seen:
        loss = nn.functional.cross_entropy(model(images), labels)
    own = storages([*model.parameters(), *model.buffers(), images, labels, loss])
    return sum(size for address, size in storages(seen).items() if address not in own)
