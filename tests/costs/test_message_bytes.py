import pytest

from fedmef.costs.exchange import measure_exchange
from fedmef.experiment import Experiment


def experiment(method: str) -> Experiment:
    return Experiment(method=method, model="small_cnn", width=8)


def test_fedavg_sends_its_parameters_both_ways_and_little_more() -> None:
    measured = measure_exchange(experiment("fedavg"), (1, 8, 8), 10)
    floats = 8 * 9 + 16 * 8 * 9 + 32 * 16 * 9 + (8 + 16 + 32) * 4 + 32 * 10 + 10  # with running statistics
    assert floats * 4 < measured.up < floats * 4 + 4000
    assert measured.up <= measured.down < measured.up + 1000
    assert measured.adjusting == measured.ordinary == measured.down + measured.up
    assert measured.up_adjusting is None


@pytest.mark.parametrize("method", ["feddst", "fedtiny", "fedmef", "prunefl"])
def test_a_round_that_adjusts_sends_more_up(method: str) -> None:
    measured = measure_exchange(experiment(method), (1, 8, 8), 10)
    assert measured.up_adjusting is not None
    assert measured.up_adjusting > measured.up
    assert measured.adjusting > measured.ordinary


def test_the_messages_do_not_depend_on_how_a_device_trains() -> None:
    one = measure_exchange(experiment("fedmef"), (1, 8, 8), 10)
    changed = experiment("fedmef").model_copy(
        update={"batch_size": 1, "local_epochs": 9, "learning_rate": 100.0}
    )
    assert abs(measure_exchange(changed, (1, 8, 8), 10).adjusting - one.adjusting) < 50  # digits in headers
