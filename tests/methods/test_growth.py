import copy

import pytest
import torch
from torch import Tensor, nn

from fedmef.errors import FedmefError
from fedmef.federation.aggregation import weighted_mean
from fedmef.methods.base import Extras, Update
from fedmef.methods.growth import adjustment_counts, average_scores, drop_and_grow_from_averages
from fedmef.nn import GrowthScores, SparseConv2d


def scores(positions: list[int], gradients: list[float]) -> GrowthScores:
    return GrowthScores(torch.tensor(positions), torch.tensor(gradients))


def update(device: int, samples: int, growth: GrowthScores) -> Update:
    return Update(device, samples, 0.0, {}, Extras(growth={"0": growth}))


def layer_of(model: nn.Module) -> SparseConv2d:
    layer = model.get_submodule("0")
    assert isinstance(layer, SparseConv2d)
    return layer


def small_model() -> nn.Module:
    layer = SparseConv2d(1, 2, (1, 4), bias=False, sparsity=0.5)
    layer.assign(torch.tensor([0, 2, 5, 7]), torch.tensor([0.5, -0.1, 0.2, -3.0]))
    return nn.Sequential(layer)


def test_absent_gradients_count_zero_in_the_average() -> None:
    average = average_scores([scores([1, 3], [1.0, 4.0]), scores([3, 6], [-2.0, 8.0])], [0.25, 0.75])
    assert average.positions.tolist() == [1, 3, 6]
    assert average.gradients.tolist() == [0.25, 1.0 - 1.5, 6.0]


def test_the_largest_averaged_gradients_grow_and_the_smallest_weights_go() -> None:
    model = small_model()
    updates = [update(0, 1, scores([1, 3], [1.0, 4.0])), update(1, 3, scores([3, 6], [-2.0, 8.0]))]
    adjustment = drop_and_grow_from_averages(model, updates, rate=0.5, grow_init="zero")
    # ξ = floor(0.5 · 4) = 2: averages are 0.25 at 1, −0.5 at 3, 6 at 6; −0.1 at 2 and 0.2 at 5 are smallest
    assert layer_of(model).active_positions().tolist() == [0, 3, 6, 7]
    assert layer_of(model).values.tolist() == [0.5, 0.0, 0.0, -3.0]
    assert adjustment.exchanged == 2
    assert adjustment.dropped_magnitude == pytest.approx(0.15)


def test_grown_weights_can_start_at_their_filters_mean() -> None:
    model = small_model()
    updates = [update(0, 1, scores([1, 6], [1.0, 4.0]))]
    drop_and_grow_from_averages(model, updates, rate=0.25, grow_init="mean")
    assert layer_of(model).active_positions().tolist() == [0, 5, 6, 7]
    torch.testing.assert_close(
        layer_of(model).values.detach(), torch.tensor([0.5, 0.2, (0.2 - 3.0) / 2, -3.0])
    )


def test_growing_at_the_mean_of_what_is_left_changes_no_function() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(SparseConv2d(4, 3, 3, bias=False, sparsity=0.5, normalize=True))
    layer_of(model).center_filters()
    layer, dropped_only = layer_of(model), copy.deepcopy(layer_of(model))
    active = set(layer.active_positions().tolist())
    pruned = [position for position in range(layer.geometry.size) if position not in active][:7]
    kept = layer.values.detach().abs().argsort()[7:].sort().values
    dropped_only.assign(layer.active_positions()[kept], layer.values.detach()[kept])

    growth = scores(pruned, [1.0] * 7)
    drop_and_grow_from_averages(model, [update(0, 1, growth)], 7.5 / layer.active_count, "mean")
    torch.testing.assert_close(layer.dense_weight(), dropped_only.dense_weight(), atol=1e-6, rtol=0)


def test_under_nsconv_what_is_closest_to_its_filters_mean_goes() -> None:
    layer = SparseConv2d(1, 1, (1, 8), bias=False, sparsity=0.5, normalize=True)
    # The mean is 1.25: NSConv sees -1.25, -0.25, -0.25, 1.75, so both 1 go although 0 is the smallest.
    layer.assign(torch.tensor([0, 2, 4, 6]), torch.tensor([0.0, 1.0, 1.0, 3.0]))
    growth = [update(0, 1, scores([1, 3], [1.0, 1.0]))]
    drop_and_grow_from_averages(nn.Sequential(layer), growth, 0.5, "zero")
    assert layer.active_positions().tolist() == [0, 1, 3, 6]
    # Grown at 0 where -1.25 and 1.75 are left, then centred.
    torch.testing.assert_close(layer.values.detach(), torch.tensor([-1.375, -0.125, -0.125, 1.625]))


@pytest.mark.parametrize(
    ("growth", "expected"),
    [
        ({}, "no growth scores"),
        ({"0": GrowthScores(torch.tensor([1, 3]), torch.tensor([1.0]))}, "no growth scores"),
        ({"0": scores([1, 3], [1.0, float("nan")])}, "not finite"),
        ({"0": scores([3, 1], [1.0, 1.0])}, "not ascending or out of range"),
        ({"0": scores([1, 8], [1.0, 1.0])}, "not ascending or out of range"),
        ({"0": scores([1, 2], [1.0, 1.0])}, "for a weight that is active"),
    ],
)
def test_wrong_scores_stop_the_run_and_name_the_device(
    growth: dict[str, GrowthScores], expected: str
) -> None:
    wrong = Update(7, 1, 0.0, {}, Extras(growth=growth))
    with pytest.raises(FedmefError, match=f"device 7 sent .*{expected}"):
        drop_and_grow_from_averages(small_model(), [wrong], 0.5, "zero")


def test_with_too_few_candidates_fewer_are_exchanged() -> None:
    model = small_model()
    adjustment = drop_and_grow_from_averages(model, [update(0, 1, scores([4], [1.0]))], 0.5, "zero")
    assert adjustment.exchanged == 1
    assert layer_of(model).active_positions().tolist() == [0, 4, 5, 7]


def test_dense_layers_exchange_nothing() -> None:
    model = nn.Sequential(SparseConv2d(1, 2, 2, sparsity=0.0), SparseConv2d(2, 2, 2, sparsity=0.5))
    assert adjustment_counts(model, 0.4) == {"1": 3}


def test_the_weighted_mean_is_summed_in_double_precision() -> None:
    large: Tensor = torch.tensor([1e8])
    assert weighted_mean([large, -large, torch.tensor([1.0])], [0.25, 0.25, 0.5]).tolist() == [0.5]
