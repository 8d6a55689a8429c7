"""ReLU and ReLU6 that keep one bit an element."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedmef.nn import ReLU, ReLU6
from fedmef.nn.relu import passing_at_zero
from tests.nn.saved import saved_tensors

EDGES = torch.tensor([-1.0, -0.0, 0.0, 1e-30, 5.999999, 6.0, 6.000001, 100.0])


def gradient(layer: nn.Module, values: Tensor, upstream: Tensor) -> tuple[Tensor, Tensor]:
    leaf = values.clone().requires_grad_()
    output = layer(leaf)
    output.backward(upstream)
    assert leaf.grad is not None
    return output.detach(), leaf.grad


def test_relu_on_its_edges_by_hand() -> None:
    output, grad = gradient(ReLU(), EDGES, torch.full((8,), 2.0))
    assert torch.equal(output, torch.tensor([0, 0, 0, 1e-30, 5.999999, 6.0, 6.000001, 100.0]))
    assert grad.tolist() == [0, 0, 0, 2, 2, 2, 2, 2]


def test_relu6_on_its_edges_by_hand() -> None:
    output, grad = gradient(ReLU6(), EDGES, torch.full((8,), 2.0))
    assert torch.equal(output, torch.tensor([0, 0, 0, 1e-30, 5.999999, 6.0, 6.0, 6.0]))
    assert grad.tolist() == [0, 0, 0, 2, 2, 0, 0, 0]


@pytest.mark.parametrize(("ours", "theirs"), [(ReLU(), nn.ReLU()), (ReLU6(), nn.ReLU6())])
@given(
    values=st.lists(
        st.one_of(st.floats(-9, 9, width=32), st.sampled_from(EDGES.tolist())), min_size=1, max_size=40
    ),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=50)
def test_values_and_gradients_equal_pytorchs(
    ours: nn.Module, theirs: nn.Module, values: list[float], seed: int
) -> None:
    vector = torch.tensor(values)
    upstream = torch.randn(len(values), generator=torch.Generator().manual_seed(seed))
    for mine, plain in zip(gradient(ours, vector, upstream), gradient(theirs, vector, upstream), strict=True):
        assert torch.equal(mine, plain)


@pytest.mark.parametrize("layer", [ReLU(), ReLU6()])
def test_one_bit_an_element_is_kept(layer: nn.Module) -> None:
    inputs = torch.randn(2, 3, 5, 5, requires_grad=True)
    with saved_tensors() as seen:
        layer(inputs)
    assert [(tensor.dtype, tensor.shape) for tensor in seen] == [(torch.uint8, (19,))]  # 150 / 8


@pytest.mark.parametrize(("ours", "theirs"), [(ReLU(), F.relu), (ReLU6(), F.relu6)])
def test_any_memory_layout_is_as_good(ours: nn.Module, theirs: nn.Module) -> None:
    inputs = torch.randn(2, 3, 5, 4).to(memory_format=torch.channels_last)
    upstream = torch.randn(2, 5, 4, 3).permute(0, 3, 1, 2)
    leaf = inputs.clone().requires_grad_()
    (expected,) = torch.autograd.grad(theirs(leaf), leaf, upstream)
    output, grad = gradient(ours, inputs, upstream)
    assert torch.equal(output, theirs(inputs))
    assert torch.equal(grad, expected)


def test_nothing_is_changed_in_place() -> None:
    values = torch.tensor([-1.0, 7.0])
    ReLU()(values)
    ReLU6()(values)
    assert values.tolist() == [-1.0, 7.0]


@pytest.mark.parametrize(
    ("layer", "expected"), [(ReLU(), [0, 2, 2, 2, 2, 2, 2, 2]), (ReLU6(), [0, 2, 2, 2, 2, 0, 0, 0])]
)
def test_gradients_can_pass_at_zero(layer: nn.Module, expected: list[float]) -> None:
    with passing_at_zero():
        output, grad = gradient(layer, EDGES, torch.full((8,), 2.0))
    assert torch.equal(output, layer(EDGES))
    assert grad.tolist() == expected


def test_what_is_below_zero_never_passes() -> None:
    with passing_at_zero():
        _, grad = gradient(ReLU(), torch.tensor([-1e-45, -1e-30, -5.0]), torch.ones(3))
    assert not grad.any()


def test_gradients_pass_at_zero_in_channels_last_too() -> None:
    inputs = torch.tensor([[-1.0, 0.0, 2.0], [0.0, -3.0, 0.0]]).repeat(2, 2).view(2, 2, 3, 2)
    for images in (inputs, inputs.to(memory_format=torch.channels_last)):
        with passing_at_zero():
            _, grad = gradient(ReLU(), images, torch.ones_like(images))
        assert torch.equal(grad, (inputs >= 0).float())


def test_the_forward_pass_decides_whether_gradients_pass_at_zero() -> None:
    leaf = torch.zeros(1, requires_grad=True)
    with passing_at_zero():
        inside = ReLU()(leaf)
    outside = ReLU()(leaf)
    assert torch.autograd.grad(inside, leaf)[0].item() == 1
    with passing_at_zero():
        assert torch.autograd.grad(outside, leaf)[0].item() == 0


def test_after_an_error_nothing_passes_at_zero() -> None:
    with pytest.raises(RuntimeError, match="in the block"), passing_at_zero():
        raise RuntimeError("in the block")
    assert gradient(ReLU(), torch.zeros(1), torch.ones(1))[1].item() == 0
