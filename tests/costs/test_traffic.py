import pytest

from fedmef.costs.traffic import measure_exchange
from fedmef.experiment.settings import Experiment


def experiment(method: str) -> Experiment:
    return Experiment(method=method, model="small_cnn", width=8)


def test_fedavg_sends_its_parameters_both_ways_and_little_more() -> None:
    measured = measure_exchange(experiment("fedavg"), (1, 8, 8), 10)
    floats = 8 * 9 + 16 * 8 * 9 + 32 * 16 * 9 + (8 + 16 + 32) * 4 + 32 * 10 + 10  # with running statistics
    assert floats * 4 < measured.up < floats * 4 + 4000
    assert measured.up <= measured.down < measured.up + 3000  # down goes the network as JSON too
    assert measured.adjusting == measured.ordinary == measured.down + measured.up
    assert measured.up_adjusting is None


@pytest.mark.parametrize("method", ["feddst", "fedtiny", "fedmef", "prunefl"])
def test_a_round_that_adjusts_sends_more_up(method: str) -> None:
    measured = measure_exchange(experiment(method), (1, 8, 8), 10)
    assert measured.up_adjusting is not None
    assert measured.up_adjusting > measured.up
    assert measured.adjusting > measured.ordinary


def test_small_batches_do_not_hide_what_an_adjustment_sends() -> None:
    """Few images leave pruned positions of a small map without a gradient; real devices see more."""
    network = {"method": "fedmef", "model": "resnet18", "width": 8, "stem": "imagenet"}
    few, many = (
        measure_exchange(Experiment(**network, batch_size=size), (3, 32, 32), 10)  # type: ignore[arg-type]
        for size in (1, 64)
    )
    assert few.up == pytest.approx(many.up, abs=64)  # the loss is in it, in digits
    assert few.adjusting > 0.9 * many.adjusting
