"""Extrusion does what it is for: little is left in the weights that get pruned."""

from pathlib import Path

import pytest

import fedmef
from fedmef import Experiment, Run
from fedmef.studies.paper.marked_magnitude import dropped_magnitude, relative_magnitude
from tests.small import small

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
def test_less_is_left_in_pruned_weights_as_lambda_grows(tmp_path: Path) -> None:
    fedtiny = run(tmp_path, "fedtiny", 0.3, 0.0)
    lambdas = (0.0, Experiment().extrusion, 0.5, 100.0)
    runs = [run(tmp_path, "fedmef", 0.5, value) for value in lambdas]

    for measure in (dropped_magnitude, relative_magnitude):
        none, small, good, absurd = (measure([each]) or 0.0 for each in runs)
        assert none > small > good > absurd > 0
        # Raw magnitudes compare here, because both networks' weights have about the same scale; the
        # relative ones compare always.
        assert good <= (measure([fedtiny]) or 0.0) / 2


def test_magnitudes_are_means_over_adjustments_and_seeds(tmp_path: Path) -> None:
    finished = fedmef.run(small(rounds=3, adjust_every=1, adjust_until=3), tmp_path / "fedmef-seed0")
    first, *adjusting = [record.dropped_magnitude for record in finished.rounds]
    assert first is None
    magnitudes = [value for value in adjusting if value is not None]
    assert len(magnitudes) == 2
    assert dropped_magnitude([finished]) == pytest.approx(sum(magnitudes) / 2)
    assert dropped_magnitude([finished, finished]) == dropped_magnitude([finished])
    assert dropped_magnitude([]) is None
    assert 0 < (relative_magnitude([finished]) or 0.0) < 1
