"""SWAT: convolutions with the largest weights, gradients for all of them."""

import torch
import torch.nn.functional as F

from fedmef.models import build_model
from fedmef.nn import sparsify
from fedmef.nn.swat import SwatConv2d, use_swat


def swat_layer(values: list[float], sparsity: float) -> SwatConv2d:
    layer = SwatConv2d(1, 1, (1, len(values)), bias=False, sparsity=0.0)
    layer.assign(torch.arange(len(values)), torch.tensor(values))
    layer.sparsity = sparsity
    return layer


def test_a_swat_layer_convolves_with_its_largest_weights_and_learns_all_of_them() -> None:
    layer = swat_layer([1.0, -4.0, 2.0, 3.0], sparsity=0.5)
    image = torch.tensor([[[[1.0, 10.0, 100.0, 1000.0]]]])
    output = layer(image)
    assert output.item() == -40 + 3000
    output.sum().backward()
    assert layer.values.grad is not None
    assert layer.values.grad.tolist() == [1.0, 10.0, 100.0, 1000.0]


def test_the_input_gets_the_gradient_of_the_largest_weights() -> None:
    layer = swat_layer([1.0, -4.0, 2.0, 3.0], sparsity=0.5)
    image = torch.zeros(1, 1, 1, 4, requires_grad=True)
    layer(image).sum().backward()
    assert image.grad is not None
    assert image.grad.flatten().tolist() == [0.0, -4.0, 0.0, 3.0]


def test_swat_keeps_only_the_largest_activations_for_the_weights_gradient() -> None:
    layer = SwatConv2d(2, 2, 3, bias=False, sparsity=0.0, activation_sparsity=0.5)
    layer.sparsity = 0.5
    images = torch.randn(1, 2, 4, 4, requires_grad=True)
    layer(images).sum().backward()
    kept = images.detach().clone()
    kept[kept.abs() < kept.abs().flatten().sort().values[16]] = 0
    weight = torch.zeros(2, 2, 3, 3, requires_grad=True)
    F.conv2d(kept, weight).sum().backward()  # type: ignore[no-untyped-call]
    assert layer.values.grad is not None
    assert weight.grad is not None
    torch.testing.assert_close(layer.values.grad, weight.grad.flatten())


def test_only_layers_that_are_not_excepted_become_swat() -> None:
    network = build_model("small_cnn", classes=10, channels=1, width=4, seed=0)
    model = sparsify(network, sparsity=0.0, activation_sparsity=0.5)
    use_swat(model, 0.9, except_for=["features.1.0"])
    kinds = {name: type(module) for name, module in model.named_modules()}
    swat = [name for name, kind in kinds.items() if kind is SwatConv2d]
    assert swat == ["features.3.0"]
    assert model.get_submodule("features.3.0").sparsity == 0.9
