from pathlib import Path
from typing import Any

import pytest

import fedmef
from fedmef.errors import Interrupted, UserError
from fedmef.experiment.resuming import resumed_experiment
from fedmef.experiment.settings import Experiment
from fedmef.runs.directory import Record, Run

TINY: dict[str, Any] = {
    "width": 4,
    "devices": 4,
    "devices_per_round": 2,
    "local_epochs": 1,
    "batch_size": 64,
    "adjust_every": 1,
    "engine": "inline",
}


def model(run: Run) -> bytes:
    return (run.path / "model.safetensors").read_bytes()


def test_every_changed_field_is_named() -> None:
    with pytest.raises(
        UserError, match=r"sparsity = 0\.9 there, 0\.5 here; extrusion = 0\.5 there, 2\.0 here"
    ):
        resumed_experiment(Experiment(), {"sparsity": 0.5, "extrusion": 2, "workers": 3})


def test_what_is_given_again_unchanged_is_no_change() -> None:
    assert resumed_experiment(Experiment(), {"sparsity": "0.9", "workers": 3}).workers == 3


def test_more_rounds_leave_the_schedule_of_adjustments_as_it_was() -> None:
    longer = resumed_experiment(Experiment(rounds=40), {"rounds": 80})
    assert (longer.rounds, longer.last_adjustment) == (80, 24)
    assert resumed_experiment(longer, {"rounds": 80, "adjust_until": None}) == longer


@pytest.mark.parametrize("finished", [True, False])
def test_more_rounds_end_in_the_bits_of_the_longer_run(tmp_path: Path, finished: bool) -> None:
    def interrupt(record: Record) -> None:
        if record["round"] == 1:
            raise KeyboardInterrupt

    if finished:
        fedmef.run(Experiment(**TINY, rounds=3), tmp_path / "run")
    else:
        with pytest.raises(Interrupted):
            fedmef.run(Experiment(**TINY, rounds=3), tmp_path / "run", watch=interrupt)
    longer = fedmef.resume(tmp_path / "run", {"rounds": 4})
    assert [record["round"] for record in longer.metrics] == [0, 1, 2, 3]
    assert Run.open(longer.path).experiment.rounds == 4
    whole = fedmef.run(Experiment(**TINY, rounds=4, adjust_until=2), tmp_path / "whole")
    assert model(longer) == model(whole)


def test_fewer_rounds_than_are_done_are_refused(tmp_path: Path) -> None:
    run = fedmef.run(Experiment(**TINY, rounds=2), tmp_path / "run")
    with pytest.raises(UserError, match=r"rounds = 1: .* has done 2 rounds already"):
        fedmef.resume(run.path, {"rounds": 1})


def test_a_run_that_is_cut_short_is_scored_at_its_end(tmp_path: Path) -> None:
    def interrupt(record: Record) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    settings = {**TINY, "adjust_until": 0, "evaluate_every": 2}
    with pytest.raises(Interrupted):
        fedmef.run(Experiment(**settings, rounds=10), tmp_path / "run", watch=interrupt)
    cut = fedmef.resume(tmp_path / "run", {"rounds": 3})
    whole = fedmef.run(Experiment(**settings, rounds=3), tmp_path / "whole")
    assert model(cut) == model(whole)
    for field in ("test_accuracy", "test_loss", "best_test_accuracy", "rounds"):
        assert cut.summary[field] == whole.summary[field]
