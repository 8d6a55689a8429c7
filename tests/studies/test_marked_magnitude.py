"""Extrusion does what it is for: little is left in the weights that get pruned."""

from pathlib import Path

import pytest

import fedmef
from fedmef import Experiment, Run
from fedmef.studies.marked_magnitude import dropped_magnitude, relative_magnitude

FEDERATION = {"width": 16, "devices_per_round": 5, "rounds": 12, "local_epochs": 2, "adjust_every": 3}


def run(folder: Path, method: str, rate: float, extrusion: float) -> Run:
    experiment = Experiment(
        **FEDERATION,  # type: ignore[arg-type]
        method=method,
        learning_rate=rate,
        extrusion=extrusion,
        engine="inline",
    )
    return fedmef.run(experiment, folder / f"{method}-{extrusion}")


@pytest.mark.slow
def test_less_is_left_in_pruned_weights_as_lambda_grows_until_it_is_absurd(tmp_path: Path) -> None:
    fedtiny = run(tmp_path, "fedtiny", 0.3, 0.0)
    lambdas = (0.0, 0.1, Experiment().extrusion, 10.0)
    none, small, good, absurd = (run(tmp_path, "fedmef", 0.5, value) for value in lambdas)

    for measure in (dropped_magnitude, relative_magnitude):
        left = [measure([each]) or 0.0 for each in (none, small, good)]
        assert left[0] > left[1] > left[2] > 0
        # Raw magnitudes compare here, because both networks' weights have about the same scale; the
        # relative ones compare always.
        assert left[2] <= (measure([fedtiny]) or 0.0) / 2

    # A step multiplies a marked weight by 1 - 2λη = -9: it explodes, and the network with it.
    assert (dropped_magnitude([absurd]) or 0.0) > (dropped_magnitude([none]) or 0.0)
    assert absurd.summary["test_accuracy"] < 0.5 * good.summary["test_accuracy"]


def test_magnitudes_are_means_over_adjustments_and_seeds(tmp_path: Path) -> None:
    one = Experiment(width=4, devices=4, devices_per_round=2, rounds=3, adjust_every=1, adjust_until=3)
    finished = fedmef.run(
        one.model_copy(update={"local_epochs": 1, "engine": "inline"}), tmp_path / "fedmef-seed0"
    )
    logged = [record["dropped_magnitude"] for record in finished.metrics]
    assert logged[0] is None
    assert dropped_magnitude([finished]) == pytest.approx((logged[1] + logged[2]) / 2)
    assert dropped_magnitude([finished, finished]) == dropped_magnitude([finished])
    assert dropped_magnitude([]) is None
    assert 0 < (relative_magnitude([finished]) or 0.0) < 1
