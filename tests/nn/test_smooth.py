"""SiLU and its like with one byte an element."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedmef.nn.functionals import Saving, save_memory_in_functionals
from fedmef.nn.smooth import SMOOTH, STEPS, Smooth
from tests.nn.saved import saved_tensors

VALUES = torch.linspace(-6, 6, 4001)


@pytest.mark.parametrize("kind", SMOOTH)
@pytest.mark.parametrize("in_place", [False, True])
def test_values_are_exact_and_gradients_are_off_by_half_a_step(kind: type[nn.Module], in_place: bool) -> None:
    exact, ours = VALUES.clone().requires_grad_(), VALUES.clone().requires_grad_()
    expected, output = kind()(exact * 1), Smooth(kind(), in_place)(ours * 1)
    assert torch.equal(output, expected)
    (right,) = torch.autograd.grad(expected.sum(), exact)
    (found,) = torch.autograd.grad(output.sum(), ours)
    step = float(right.max() - right.min()) / STEPS
    assert float((found - right).abs().max()) <= 0.51 * step


def test_one_byte_an_element_is_kept_and_the_inner_pass_leaves_nothing() -> None:
    with saved_tensors() as seen:
        output = Smooth(nn.SiLU())(VALUES.clone().requires_grad_())
    assert [(tensor.dtype, tensor.shape) for tensor in seen[-1:]] == [(torch.uint8, VALUES.shape)]
    assert output.grad_fn is not None


def test_in_place_is_in_place() -> None:
    values = VALUES * 1
    result = Smooth(nn.Hardswish(), inplace=True)(values)
    assert result is values
    learning = VALUES.clone().requires_grad_() * 1
    assert Smooth(nn.Hardswish(), inplace=True)(learning) is learning
    assert torch.equal(learning, F.hardswish(VALUES))


class Calls(nn.Module):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return F.silu(F.gelu(values, approximate="tanh") * 1, True) + F.elu(values, 0.5)


def test_functions_are_answered_too_if_gradients_may_be_rounded() -> None:
    for rounded, kinds in ((False, {torch.float32}), (True, {torch.uint8})):
        model = Calls()
        expected = model(VALUES)
        save_memory_in_functionals(model, saving=Saving(rounded))
        learning = VALUES.clone().requires_grad_()
        output = model(learning)
        assert torch.equal(output, expected)
        seen = []
        waiting = [output.grad_fn]
        while waiting:
            function = waiting.pop()
            seen += list(getattr(function, "saved_tensors", ()))
            seen += [getattr(function, "_saved_self")] if hasattr(function, "_saved_self") else []  # noqa: B009
            waiting += [next_one for next_one, _ in function.next_functions if next_one is not None]
        assert {tensor.dtype for tensor in seen if isinstance(tensor, torch.Tensor)} == kinds
