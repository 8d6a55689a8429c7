"""Scaled activation pruning (FedMef, section 3.4): what a convolution keeps of its input for backward.

Only the largest magnitudes stay, as one bit an element and the packed values. A share of at most
`1 − sparsity` is ever kept, and within that share the choice is the exact top-k.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedmef.nn.bits import active_positions, mask_from_positions
from fedmef.nn.topk import largest_magnitudes
from fedmef.sparsity.masks import active_count


@dataclass(frozen=True)
class PrunedActivation:
    """An activation of which only the largest magnitudes are left."""

    bits: Tensor  # packed, uint8
    values: Tensor  # [kept]

    @classmethod
    def prune(
        cls, activation: Tensor, sparsity: float, dtype: torch.dtype | None = None
    ) -> "PrunedActivation":
        """Keep the `1 − sparsity` largest magnitudes, as `dtype` (the activation's own by default)."""
        flat = activation.reshape(-1)
        positions = largest_magnitudes(flat, active_count(flat.numel(), sparsity))
        values = flat.index_select(0, positions)
        if dtype is not None and dtype != values.dtype:
            limit = torch.finfo(dtype).max  # beyond half precision's range is its edge, not infinity
            values = values.clamp(-limit, limit).to(dtype)
        return cls(mask_from_positions(positions, flat.numel()), values)

    def restore(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """The dense activation, with zeros where it was pruned."""
        dense = torch.zeros(shape.numel(), dtype=dtype, device=self.values.device)
        positions = active_positions(self.bits, dense.numel())
        return dense.scatter_(0, positions, self.values.to(dtype)).view(shape)
