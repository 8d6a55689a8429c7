"""Measured bytes are the allocator's."""

import copy

import torch
from torch import Tensor, nn

from fedmef.costs.allocator import bytes_kept_for_backward, bytes_of_state, peak_of_tensors
from fedmef.nn import ReLU

# log-probabilities and total weight of the cross-entropy of two images in ten classes, and the loss itself
LOSS = 2 * 10 * 4 + 4 + 4


def network(activation: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), activation, nn.Flatten(), nn.Linear(4 * 64, 10))


def test_a_relu_keeps_its_output_by_hand() -> None:
    # The convolution's input is the batch, and the linear layer's is the ReLU's output: counted once.
    assert bytes_kept_for_backward(network(nn.ReLU()), torch.randn(2, 3, 8, 8)) == 2 * 4 * 64 * 4 + LOSS


def test_a_sigmoid_after_a_relu_keeps_its_own_output_too() -> None:
    activation = nn.Sequential(nn.ReLU(), nn.Sigmoid())
    assert bytes_kept_for_backward(network(activation), torch.randn(2, 3, 8, 8)) == 2 * 2 * 4 * 64 * 4 + LOSS


def test_bits_and_the_linear_layers_input_by_hand() -> None:
    assert bytes_kept_for_backward(network(ReLU()), torch.randn(2, 3, 8, 8)) == 2 * 4 * 64 * 4 + 64 + LOSS


class HiddenFromHooks(torch.autograd.Function):
    """Keeps a tensor where autograd's own hooks do not look."""

    @staticmethod
    def forward(ctx: object, images: Tensor) -> Tensor:
        ctx.hidden = torch.ones(1000)  # type: ignore[attr-defined]
        return images.clone()

    @staticmethod
    def backward(ctx: object, grad_output: Tensor) -> Tensor:
        return grad_output


class Hiding(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        output: Tensor = HiddenFromHooks.apply(images)  # type: ignore[no-untyped-call]
        return output


def test_what_is_hidden_from_autograds_hooks_is_counted() -> None:
    images = torch.randn(2, 3, 8, 8)
    plain = bytes_kept_for_backward(network(nn.ReLU()), images)
    assert bytes_kept_for_backward(network(nn.Sequential(nn.ReLU(), Hiding())), images) == plain + 4000 + 2048


def test_measuring_leaves_the_model_and_the_generator_as_they_were() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Flatten(), nn.Linear(144, 10)
    )
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    labels = torch.tensor([3, 4])
    assert bytes_kept_for_backward(model, torch.randn(2, 3, 8, 8), labels) > 0
    torch.set_rng_state(state)
    first = bytes_kept_for_backward(model, torch.ones(2, 3, 8, 8), labels)
    assert torch.equal(torch.get_rng_state(), state)
    assert first == bytes_kept_for_backward(model, torch.ones(2, 3, 8, 8), labels)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_state_is_parameters_gradients_and_buffers_by_hand() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 1, bias=False), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 10))
    parameters = 2 + 2 * 2 + 8 * 10 + 10
    buffers = 2 * 2 * 4 + 8  # means and variances, and a 64-bit counter of batches
    before = copy.deepcopy(model.state_dict())
    assert bytes_of_state(model, torch.randn(4, 1, 2, 2)) == 2 * 4 * parameters + buffers
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_peak_of_tensors_by_hand() -> None:
    def build() -> torch.Tensor:
        torch.empty(10_000)  # gone before the work begins
        return torch.empty(100)

    def work(built: torch.Tensor) -> None:
        first = torch.empty(300)
        del first
        torch.empty(200), torch.empty(250)

    assert peak_of_tensors(build, work) == 4 * (100 + 200 + 250)
