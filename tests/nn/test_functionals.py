"""Functional calls keep as little as modules do, and only while a converted model runs."""

import threading
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmef.nn.functionals import save_memory_in_functionals
from tests.nn.saved import saved_tensors


class Calls(nn.Module):
    """A model that is nothing but one call."""

    def __init__(self, call: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, images: Tensor) -> Tensor:
        return self.call(images)


CALLS: dict[str, tuple[Callable[[Tensor], Tensor], list[tuple[int, ...]]]] = {
    # a call, and the shapes of the bytes that are kept of a batch of [2, 3, 8, 8]
    "F.relu": (F.relu, [(48,)]),
    "F.relu in place": (lambda x: F.relu(x * 1, inplace=True), [(48,)]),
    "torch.relu": (torch.relu, [(48,)]),
    "Tensor.relu": (lambda x: x.relu(), [(48,)]),
    "F.relu6": (F.relu6, [(48,)]),
    "F.max_pool2d": (lambda x: F.max_pool2d(x, 2), [(2, 3, 4, 4)]),
    "F.max_pool2d with options": (
        lambda x: F.max_pool2d(x, kernel_size=3, stride=2, padding=1, ceil_mode=True),
        [(2, 3, 5, 5)],
    ),
    "F.avg_pool2d": (lambda x: F.avg_pool2d(x, 4, stride=2), []),
    "F.adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (2, 3)), []),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_compute_the_same_and_keep_bytes(name: str) -> None:
    call, kept = CALLS[name]
    model = Calls(call)
    images = torch.randn(2, 3, 8, 8, requires_grad=True)
    expected = model(images)
    (expected_gradient,) = torch.autograd.grad(expected.square().sum(), images)
    save_memory_in_functionals(model)
    with saved_tensors() as seen:
        output = model(images)
    # `x * 1` keeps nothing
    assert [(tensor.dtype, tensor.shape) for tensor in seen] == [(torch.uint8, shape) for shape in kept]
    (gradient,) = torch.autograd.grad(output.square().sum(), images)
    assert torch.equal(output, expected)
    torch.testing.assert_close(gradient, expected_gradient)


def test_indices_of_max_pooling_are_left_to_pytorch() -> None:
    model = Calls(lambda x: F.max_pool2d(x, 2, return_indices=True)[1])
    images = torch.randn(2, 3, 8, 8)
    expected = model(images)
    save_memory_in_functionals(model)
    assert torch.equal(model(images), expected)


def is_ours() -> bool:
    with saved_tensors() as seen:
        F.relu(torch.ones(8, requires_grad=True))
    return seen[0].dtype == torch.uint8


def test_calls_outside_the_model_are_pytorchs() -> None:
    answers: list[bool] = []

    def call(images: Tensor) -> Tensor:
        answers.append(is_ours())
        thread = threading.Thread(target=lambda: answers.append(is_ours()))
        thread.start()
        thread.join()
        return images

    model = Calls(call)
    save_memory_in_functionals(model)
    assert not is_ours()
    model(torch.ones(1))
    assert answers == [True, False]  # another thread is not the model
    assert not is_ours()


def test_an_error_in_the_model_ends_it_too() -> None:
    def fail(images: Tensor) -> Tensor:
        raise RuntimeError("in forward")

    model = Calls(fail)
    save_memory_in_functionals(model)
    with pytest.raises(RuntimeError, match="in forward"):
        model(torch.ones(1))
    assert not is_ours()


def test_calls_of_a_skipped_module_are_pytorchs() -> None:
    answers: list[bool] = []

    def call(images: Tensor) -> Tensor:
        answers.append(is_ours())
        return images

    skipped = Calls(call)
    model = nn.Sequential(Calls(call), nn.Sequential(skipped), Calls(call))
    save_memory_in_functionals(model, [skipped])
    model(torch.ones(1))
    assert answers == [True, False, True]
