"""Comparing and finding elements, as PyTorch would."""

import pytest
import torch

from fedmef.nn.elements import greater, magnitude_at_least, positions_of


@pytest.mark.parametrize("size", [0, 1, 1000, 65_536, 200_001])
@pytest.mark.parametrize("density", [0.0, 0.05, 0.5, 1.0])
def test_positions_are_those_of_the_ones(size: int, density: float) -> None:
    bits = torch.rand(size, generator=torch.Generator().manual_seed(size)) < density
    assert torch.equal(positions_of(bits), bits.nonzero().squeeze(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_comparisons_are_pytorchs_own_in_every_type(dtype: torch.dtype) -> None:
    values = torch.tensor([[1.0, -1.0, 0.0], [-0.0, float("nan"), float("-inf")]], dtype=dtype)
    values.requires_grad_()
    assert greater(values, 0).tolist() == [[True, False, False], [False, False, False]]
    assert magnitude_at_least(values, 1.0).tolist() == [[True, True, False], [False, False, True]]
