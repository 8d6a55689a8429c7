"""Rounds until the end, each written down before the next begins."""

from collections.abc import Mapping
from pathlib import Path

import pytest

import fedmef
from fedmef.errors import FedmefError, Interrupted
from fedmef.experiment.settings import Experiment
from fedmef.federation.loop import versions
from fedmef.runs.directory import Run
from fedmef.sparsity.arrays import Array
from tests.federation.small import FIVE_ADJUSTMENTS, SMALL, TINY, digest, interrupted_after


def test_active_weights_per_layer_stay_the_same_in_every_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, int]] = []
    write = Run.write_checkpoint

    def spy(self: Run, state: Mapping[str, Array], next_round: int, *others: Mapping[str, Array]) -> None:
        masks = {name: value for name, value in state.items() if name.endswith(".mask")}
        seen.append({name: sum(int(byte).bit_count() for byte in mask) for name, mask in masks.items()})
        assert all(state[name.replace("mask", "values")].size == count for name, count in seen[-1].items())
        write(self, state, next_round, *others)

    monkeypatch.setattr(Run, "write_checkpoint", spy)
    fedmef.run(Experiment(**FIVE_ADJUSTMENTS), tmp_path / "run")
    assert len(seen) == 7
    assert len(seen[0]) == 3
    assert all(counts == seen[0] for counts in seen)


def test_accuracy_is_measured_when_it_is_due_and_at_the_end(tmp_path: Path) -> None:
    run = fedmef.run(Experiment(**SMALL, rounds=4, evaluate_every=3, adjust_until=0), tmp_path / "run")
    measured = [record.test_accuracy is not None for record in run.rounds]
    assert measured == [False, False, True, True]


def test_a_last_round_that_was_not_the_last_when_it_ran_is_scored_at_the_end(tmp_path: Path) -> None:
    settings = {**TINY, "evaluate_every": 100, "adjust_until": 0}
    with pytest.raises(Interrupted):
        fedmef.run(
            Experiment(**{**settings, "rounds": 3}), tmp_path / "cut", callbacks=[interrupted_after(2)]
        )
    shorter = fedmef.resume(tmp_path / "cut", {"rounds": 2})
    whole = fedmef.run(Experiment(**{**settings, "rounds": 2}), tmp_path / "whole")
    assert [record.test_accuracy for record in shorter.rounds] == [None, None]
    assert shorter.summary.test_accuracy == whole.summary.test_accuracy
    assert shorter.summary.test_loss == whole.summary.test_loss
    assert digest(shorter.path) == digest(whole.path)


def test_diverging_training_is_a_clear_failure(tmp_path: Path) -> None:
    experiment = Experiment(**SMALL, method="fedavg", rounds=2, learning_rate=1e30)
    with pytest.raises(FedmefError, match="diverged; lower learning_rate"):
        fedmef.run(experiment, tmp_path / "run")


def test_a_run_in_the_middle_of_a_round_says_which_and_how_to_resume(tmp_path: Path) -> None:
    with pytest.raises(Interrupted, match=r"stopped in round 2 of 3; 'fedmef run --resume .*' continues it"):
        fedmef.run(Experiment(**{**TINY, "rounds": 3}), tmp_path / "run", callbacks=[interrupted_after(2)])


def test_a_summary_names_the_versions_that_decide_a_runs_bits(tmp_path: Path) -> None:
    run = fedmef.run(Experiment(**TINY), tmp_path / "run")
    assert (run.summary.fedmef, run.summary.torch) == (fedmef.__version__, versions()["torch"])
    assert versions()["torch"] != "none"


def test_what_devices_held_goes_with_the_end_of_the_run(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        fedmef.run(Experiment(**{**TINY, "rounds": 3}), tmp_path / "run", callbacks=[interrupted_after(2)])
    held = {file.suffix for file in (tmp_path / "run" / "held").iterdir()}
    assert held == {".json", ".safetensors"}
    fedmef.resume(tmp_path / "run")
    assert not (tmp_path / "run" / "held").exists()
