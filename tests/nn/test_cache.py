"""What a convolution keeps of its input."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmef.nn.cache import PrunedActivation

EIGHT = torch.tensor([0.5, -4.0, 0.0, 3.0, -0.1, 0.0, 2.0, -1.0])


def test_three_quarters_of_eight_are_forgotten_by_hand() -> None:
    kept = PrunedActivation.prune(EIGHT.view(2, 4), 0.75)
    assert kept.bits.tolist() == [2 + 8]
    assert kept.values.tolist() == [-4, 3]
    restored = kept.restore(torch.Size((2, 4)), torch.float32)
    assert restored.tolist() == [[0, -4, 0, 3], [0, 0, 0, 0]]


def test_zeros_cost_no_value() -> None:
    kept = PrunedActivation.prune(EIGHT, 0.125)  # seven of eight may stay, six are not zero
    assert kept.values.tolist() == [0.5, -4, 3, pytest.approx(-0.1), 2, -1]
    assert torch.equal(kept.restore(EIGHT.shape, torch.float32), EIGHT)


@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 6), st.integers(1, 6)),
    sparsity=st.floats(0, 1, exclude_max=True),
    rectified=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(deadline=None)
def test_the_kept_share_is_never_above_what_is_allowed(
    shape: tuple[int, int, int, int], sparsity: float, rectified: bool, seed: int
) -> None:
    activation = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    activation = activation.clamp(min=0) if rectified else activation
    kept = PrunedActivation.prune(activation, sparsity)
    assert kept.values.numel() <= activation.numel() * (1 - sparsity) + 1e-6
    assert kept.bits.numel() == (activation.numel() + 7) // 8

    restored = kept.restore(activation.shape, activation.dtype)
    is_kept = restored != 0
    assert int(is_kept.sum()) == kept.values.numel()
    assert torch.equal(restored[is_kept], activation[is_kept])
    if is_kept.any() and not is_kept.all():
        assert restored[is_kept].abs().min() >= activation[~is_kept].abs().max()


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_large_activation_keeps_its_share_to_the_element(share: float) -> None:
    activation = torch.randn(8, 16, 40, 40)  # more than the sample that guesses the threshold
    kept = PrunedActivation.prune(activation, 1 - share)
    assert kept.values.numel() == int(activation.numel() * share + 1e-6)


@pytest.mark.parametrize(("dtype", "precision"), [(torch.float16, 2**-11), (torch.bfloat16, 2**-8)])
def test_half_precision_halves_the_values_and_rounds_them(dtype: torch.dtype, precision: float) -> None:
    activation = torch.randn(1000)
    kept = PrunedActivation.prune(activation, 0.5, dtype)
    assert kept.values.dtype == dtype
    assert kept.values.nbytes == 500 * 2
    restored = kept.restore(activation.shape, torch.float32)
    assert restored.dtype == torch.float32
    exact = PrunedActivation.prune(activation, 0.5).restore(activation.shape, torch.float32)
    torch.testing.assert_close(restored, exact, rtol=precision, atol=1e-7)


def test_what_half_precision_cannot_hold_becomes_its_edge_not_infinity() -> None:
    activation = torch.tensor([1e6, -1e6, 1.0, 65504.0])
    kept = PrunedActivation.prune(activation, 0.0, torch.float16)
    assert kept.values.tolist() == [65504, -65504, 1, 65504]


def test_a_memory_layout_does_not_move_anything() -> None:
    activation = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    kept = PrunedActivation.prune(activation, 0.0)
    assert torch.equal(kept.restore(activation.shape, torch.float32), activation)
