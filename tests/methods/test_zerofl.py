"""ZeroFL: the largest weights go up, each position is averaged over those who sent it."""

import numpy as np
import pytest

from fedmef.errors import RejectedError
from fedmef.experiment.settings import Experiment
from fedmef.methods.zerofl import ZeroFL, swat_layers
from fedmef.models import build_model
from fedmef.models.initial import initial_model
from fedmef.sparsity.masks import mask_from_positions
from fedmef.sparsity.model import Model
from fedmef.wire.update import Extras, Update
from tests.methods.small_models import MEAN, ORDINARY, floats, layer_model


def model(swat: float = 0.5) -> Model:
    return layer_model([0, 1, 2, 3], [1.0, 2.0, 3.0, 4.0], filters=1, swat=swat)


def update(device: int, samples: int, positions: list[int], values: list[float]) -> Update:
    masks = {"0": mask_from_positions(np.array(positions), 4)}
    return Update(device, samples, 0.0, {}, Extras(arrays={"0.sent": floats(*values)}, masks=masks))


def test_what_others_make_sparse_is_swat_and_stays_dense_in_memory() -> None:
    plain = build_model("small_cnn", classes=10, channels=1, width=4, seed=0)
    size = sum(parameter.numel() for parameter in plain.parameters())
    experiment = Experiment(method="zerofl", sparsity=0.9, width=4)
    prepared = initial_model(experiment, (1, 8, 8), 10, ((0.5,), (0.5,)))
    layers = swat_layers(prepared.network)
    assert list(layers) == ["features.1.0", "features.3.0"]
    assert all(layer.swat == 0.9 for layer in layers.values())
    assert all(prepared.active_counts()[name] == layer.size for name, layer in layers.items())
    arrays = prepared.network.arrays
    assert sum(prepared.state[name].size for name in arrays if arrays[name].role == "weight") == size


class RecordedTraining:
    """Stands for LocalTraining."""

    def __init__(self, trained: Model) -> None:
        self.model = trained
        self.epochs = 0

    def fit(self, epochs: int) -> None:
        self.epochs += epochs


def test_a_device_sends_its_largest_weights_and_a_tenth_more_than_convolve() -> None:
    local = RecordedTraining(
        layer_model(range(20), [float(n * (-1) ** n) for n in range(20)], filters=5, swat=0.8)
    )
    extras = ZeroFL().train(local, ORDINARY)  # type: ignore[arg-type]
    assert local.epochs == 1
    assert extras.arrays["0.sent"].tolist() == [14.0, -15.0, 16.0, -17.0, 18.0, -19.0]  # 30 % of 20
    np.testing.assert_array_equal(extras.masks["0"], mask_from_positions(np.arange(14, 20), 20))
    ZeroFL().check(local.model, Update(1, 1, 0.0, {}, extras), ORDINARY)


def test_a_position_is_averaged_over_senders_and_kept_when_nobody_sent_it() -> None:
    merged = model()
    before = merged.values("0")
    updates = [update(0, 1, [0, 1], [4.0, 8.0]), update(1, 3, [1, 3], [0.0, 7.0])]
    ZeroFL().aggregate(merged, updates, MEAN)
    assert merged.values("0").tolist() == [4.0, 2.0, 3.0, 7.0]
    assert before.tolist() == [1.0, 2.0, 3.0, 4.0]  # somebody may still hold it


def test_the_masked_weights_do_not_also_go_up_whole() -> None:
    assert ZeroFL().withheld(model().network) == {"0.values"}
    assert ZeroFL().withheld(model(swat=0.0).network) == frozenset()


@pytest.mark.parametrize(
    ("positions", "values"),
    [([0], [1.0, 1.0]), ([0, 1], [1.0, float("inf")])],
)
def test_wrong_weights_are_refused(positions: list[int], values: list[float]) -> None:
    with pytest.raises(RejectedError, match="device 7 sent"):
        ZeroFL().aggregate(model(), [update(7, 1, positions, values)], MEAN)
    with pytest.raises(RejectedError, match="device 7 sent"):
        ZeroFL().check(model(), update(7, 1, positions, values), ORDINARY)


def test_more_weights_than_agreed_are_refused() -> None:
    ZeroFL().check(model(), update(7, 1, [0, 1], [1.0, 1.0]), ORDINARY)
    with pytest.raises(RejectedError, match="device 7 sent too many weights of 0"):
        ZeroFL().check(model(), update(7, 1, [0, 1, 2], [1.0, 1.0, 1.0]), ORDINARY)


@pytest.mark.parametrize("extras", [Extras(), Extras(arrays={"0.sent": floats(1.0)})])
def test_an_update_without_its_masks_is_refused(extras: Extras) -> None:
    with pytest.raises(RejectedError, match="device 7 sent no '0"):
        ZeroFL().check(model(), Update(7, 1, 0.0, {}, extras), ORDINARY)
