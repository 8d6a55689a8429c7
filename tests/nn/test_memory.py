"""The savings are real: bytes alive after a forward pass, and bytes of parameters, masks and gradients."""

import pytest
import torch
from torch import nn

from fedmef.costs.allocator import bytes_kept_for_backward
from fedmef.models import build_model
from fedmef.nn import sparsify
from tests.nn.saved import saved_bytes

BATCH = 64


def resnet18(stem: str = "cifar") -> nn.Module:
    return build_model("resnet18", classes=10, channels=3, stem=stem, seed=0)


def fedmef(stem: str, cache_dtype: torch.dtype | None) -> nn.Module:
    return sparsify(
        resnet18(stem), sparsity=0.9, normalize=True, activation_sparsity=0.9, cache_dtype=cache_dtype
    )


@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_what_is_kept_for_the_backward_pass_is_a_fraction(stem: str) -> None:
    images, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(0, 10, (BATCH,))
    loss_bytes = 4
    models = {
        "plain": resnet18(stem),
        "fp32": fedmef(stem, None),
        "fp16": fedmef(stem, torch.float16),
    }
    allocated = {name: bytes_kept_for_backward(model, images, labels) for name, model in models.items()}
    # A second, independent way: the storages that autograd itself says it saves.
    saved = {name: saved_bytes(model, images, labels) + loss_bytes for name, model in models.items()}
    assert allocated == saved, "the allocator and autograd's hooks disagree"
    ratios = {name: allocated[name] / allocated["plain"] for name in ("fp32", "fp16")}
    message = f"{stem} stem: {allocated} bytes, ratios {ratios}"
    assert ratios["fp32"] <= 0.20, message
    assert ratios["fp16"] <= 0.15, message


def bytes_of_parameters_masks_and_gradients(model: nn.Module) -> int:
    images, labels = torch.randn(2, 3, 32, 32), torch.randint(0, 10, (2,))
    nn.functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert len(gradients) == len(list(model.parameters()))
    masks = [buffer for name, buffer in model.named_buffers() if name.endswith("mask")]
    return sum(tensor.nbytes for tensor in [*model.parameters(), *masks, *gradients])


def test_parameters_masks_and_gradients_are_a_fraction() -> None:
    plain = bytes_of_parameters_masks_and_gradients(resnet18())
    sparse = bytes_of_parameters_masks_and_gradients(fedmef("cifar", None))
    assert sparse / plain <= 0.13, f"{sparse} of {plain} bytes: {sparse / plain:.4f}"


def test_an_optimisers_state_is_as_small_as_the_weights() -> None:
    model = fedmef("imagenet", None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    nn.functional.cross_entropy(model(torch.randn(2, 3, 32, 32)), torch.tensor([0, 1])).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    state = sum(buffer["momentum_buffer"].nbytes for buffer in optimizer.state.values())
    dense = sum(parameter.nbytes for parameter in resnet18("imagenet").parameters())
    assert state / dense <= 0.11, f"{state} of {dense} bytes: {state / dense:.4f}"
