"""FedDST: devices adjust their own masks, the server merges masks and weights."""

from pathlib import Path

import numpy as np
import pytest

import fedmef
from fedmef.errors import RejectedError
from fedmef.experiment.settings import Experiment
from fedmef.methods.base import Adjustment
from fedmef.methods.feddst import FedDST, average_over_holders
from fedmef.sparsity.growth import GrowthScores
from fedmef.sparsity.masks import mask_from_positions
from fedmef.sparsity.model import Model
from fedmef.wire.update import Extras, Update
from tests.methods.small_models import (
    ADJUSTING,
    MEAN,
    ORDINARY,
    floats,
    integers,
    layer_model,
    with_batchnorm,
)


def model() -> Model:
    return with_batchnorm([0, 2, 5, 7], [1.0] * 4)


def update(device: int, samples: int, positions: list[int], values: list[float]) -> Update:
    weights = {name: model().state[name] for name in model().network.floats}
    weights |= {"0.values": floats(*values), "1.weight": floats(device, device)}
    masks = {"0": mask_from_positions(np.array(positions), 8)}
    return Update(device, samples, 0.0, weights, Extras(masks=masks))


def test_a_position_is_averaged_over_the_devices_that_hold_it() -> None:
    held = [(integers(0, 2), floats(1.0, 4.0)), (integers(2, 3), floats(8.0, -6.0))]
    positions, values = average_over_holders(held, [0.25, 0.75], size=5)
    assert positions.tolist() == [0, 2, 3]
    assert values.tolist() == [1.0, 0.25 * 4 + 0.75 * 8, -6.0]
    assert values.dtype == np.float32


def test_devices_with_different_masks_are_merged_and_the_largest_stay() -> None:
    merged, method = model(), FedDST()
    updates = [
        update(1, 1, [0, 1, 5, 7], [1.0, 4.0, 0.1, 2.0]),
        update(3, 3, [0, 2, 5, 6], [5.0, -3.0, 0.5, 0.2]),
    ]
    for one in updates:
        method.check(merged, one, ADJUSTING)

    method.aggregate(merged, updates, MEAN)
    assert merged.state["1.weight"].tolist() == [2.5, 2.5]  # what is dense is averaged over all
    assert merged.values("0").tolist() == [1.0] * 4  # and what is not waits for its masks

    # Of what any device holds, [0, 1, 2, 5, 6, 7] with averages [4, 4, -3, 0.4, 0.2, 2], four stay.
    adjustment = method.adjust(merged, updates, ADJUSTING, MEAN)
    assert merged.positions("0").tolist() == [0, 1, 2, 7]
    assert merged.values("0").tolist() == pytest.approx([4.0, 4.0, -3.0, 2.0])
    assert adjustment == Adjustment(exchanged=1, dropped_magnitude=None)  # 1 came where 5 was


def test_the_change_of_a_single_device_counts_as_an_adjustment() -> None:
    alone, updates = model(), [update(1, 1, [0, 1, 3, 7], [1.0, 4.0, 0.1, 2.0])]
    FedDST().aggregate(alone, updates, MEAN)
    assert FedDST().adjust(alone, updates, ADJUSTING, MEAN).exchanged == 2


def test_weights_that_are_zero_fill_up_what_is_left() -> None:
    alone, updates = model(), [update(1, 1, [0, 1, 3, 7], [0.0, 4.0, 0.0, 0.0])]
    FedDST().adjust(alone, updates, ADJUSTING, MEAN)
    assert alone.positions("0").tolist() == [0, 1, 3, 7]


class RecordedTraining:
    """Stands for LocalTraining: the gradient is largest at 3 and 6."""

    def __init__(self) -> None:
        self.model = layer_model([0, 2, 5, 7], [0.5, -0.1, 0.2, -3.0])
        self.log: list[object] = []

    def fit(self, epochs: float) -> None:
        self.log.append(epochs)

    def growth_scores(self, counts: dict[str, int]) -> dict[str, GrowthScores]:
        self.log.append(counts)
        return {"0": GrowthScores(integers(1, 3, 6), floats(0.1, -8.0, 9.0))}

    def replace(self, model: Model) -> None:
        self.log.append("replace")
        self.model = model


def test_a_device_adjusts_its_own_mask_halfway() -> None:
    local = RecordedTraining()
    before = local.model
    extras = FedDST().train(local, ADJUSTING)  # type: ignore[arg-type]
    assert local.log == [0.5, {"0": 2}, "replace", 0.5]
    assert local.model.positions("0").tolist() == [0, 3, 6, 7]
    assert local.model.values("0").tolist() == [0.5, 0.0, 0.0, -3.0]
    assert extras.masks.keys() == {"0"}
    np.testing.assert_array_equal(extras.masks["0"], mask_from_positions(integers(0, 3, 6, 7), 8))
    assert before.positions("0").tolist() == [0, 2, 5, 7]  # the backend's own arrays are not touched


def test_between_adjustments_it_trains_like_fedavg() -> None:
    local = RecordedTraining()
    assert FedDST().train(local, ORDINARY) == Extras()  # type: ignore[arg-type]
    assert local.log == [1]


def test_no_accuracy_is_told_of_a_model_that_no_device_has(tmp_path: Path) -> None:
    experiment = Experiment(
        method="feddst", width=4, devices=4, devices_per_round=1, local_epochs=1, rounds=2, adjust_every=1
    )
    run = fedmef.run(experiment.model_copy(update={"adjust_until": 9, "engine": "inline"}), tmp_path / "run")
    record = run.rounds[1]
    assert record.adjusted
    assert record.exchanged_weights is not None
    assert record.exchanged_weights > 0
    assert record.accuracy_before_adjustment is None
    assert record.accuracy_after_adjustment is None


def test_a_mask_that_does_not_fit_its_values_is_refused() -> None:
    wrong = update(1, 1, [0, 1, 5], [1.0, 4.0, 0.1, 2.0])
    with pytest.raises(RejectedError, match="device 1 sent a mask of 0 that does not fit"):
        FedDST().adjust(model(), [wrong], ADJUSTING, MEAN)
    with pytest.raises(RejectedError, match="device 1 sent a mask of 0 that does not fit"):
        FedDST().check(model(), wrong, ADJUSTING)


def test_masks_are_expected_in_adjustment_rounds_only() -> None:
    good = update(1, 1, [0, 1, 2, 3], [1.0, 2.0, 3.0, 4.0])
    plain = Update(1, 1, 0.0, good.weights, Extras())
    FedDST().check(model(), good, ADJUSTING)
    FedDST().check(model(), plain, ORDINARY)
    with pytest.raises(RejectedError, match="device 1 sent an unexpected '0'"):
        FedDST().check(model(), good, ORDINARY)
    with pytest.raises(RejectedError, match="device 1 sent no '0'"):
        FedDST().check(model(), plain, ADJUSTING)


def test_without_an_adjustment_it_averages_like_fedavg() -> None:
    plain = [Update(1, 1, 0.0, update(1, 1, [0, 1, 2, 3], [1.0, 2.0, 3.0, 4.0]).weights, Extras())]
    averaged = model()
    FedDST().aggregate(averaged, plain, MEAN)
    assert averaged.positions("0").tolist() == [0, 2, 5, 7]
    assert averaged.values("0").tolist() == [1.0, 2.0, 3.0, 4.0]
