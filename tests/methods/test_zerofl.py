import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedmef.errors import FedmefError
from fedmef.experiment.settings import Experiment
from fedmef.methods.base import Extras, Update
from fedmef.methods.zerofl import SwatConv2d, ZeroFL, swat_layers
from fedmef.models import build_model
from fedmef.nn import SparseConv2d
from fedmef.sparsity import mask_from_positions


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


def test_swat_keeps_only_the_largest_activations_for_the_weights_gradient() -> None:
    torch.manual_seed(0)
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


def test_what_others_make_sparse_is_swat_and_stays_dense_in_memory() -> None:
    network = build_model("small_cnn", classes=10, channels=1, width=4, seed=0)
    size = sum(parameter.numel() for parameter in network.parameters())
    model = ZeroFL(Experiment(sparsity=0.9)).prepare(network)
    assert len(swat_layers(model)) == 2
    assert all(layer.sparsity == 0.9 and layer.density == 1 for layer in swat_layers(model).values())
    assert sum(parameter.numel() for parameter in model.parameters()) == size


def update(device: int, samples: int, positions: list[int], values: list[float]) -> Update:
    masks = {"0": mask_from_positions(torch.tensor(positions), 4)}
    return Update(device, samples, 0.0, {}, Extras(tensors={"0.sent": torch.tensor(values)}, masks=masks))


def test_a_position_is_averaged_over_senders_and_kept_when_nobody_sent_it() -> None:
    model = nn.Sequential(swat_layer([1.0, 2.0, 3.0, 4.0], 0.5))
    updates = [update(0, 1, [0, 1], [4.0, 8.0]), update(1, 3, [1, 3], [0.0, 7.0])]
    ZeroFL(Experiment()).aggregate(model, updates)
    layer = model[0]
    assert isinstance(layer, SparseConv2d)
    assert layer.values.tolist() == [4.0, 2.0, 3.0, 7.0]


def test_the_masked_weights_do_not_also_go_up_whole() -> None:
    model = nn.Sequential(swat_layer([1.0, 2.0, 3.0, 4.0], 0.5))
    assert ZeroFL(Experiment()).withheld(model) == {"0.values"}


@pytest.mark.parametrize(
    ("positions", "values"),
    [([0], [1.0, 1.0]), ([0, 1], [1.0, float("inf")])],
)
def test_wrong_weights_stop_the_run(positions: list[int], values: list[float]) -> None:
    model = nn.Sequential(swat_layer([1.0, 2.0, 3.0, 4.0], 0.5))
    with pytest.raises(FedmefError, match="device 7 sent"):
        ZeroFL(Experiment()).aggregate(model, [update(7, 1, positions, values)])
