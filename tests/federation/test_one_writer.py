"""A run has one writer: others are refused while it lives, and nothing of it is changed."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import fedmef
from fedmef.errors import FedmefError, UserError
from fedmef.experiment.settings import Experiment
from fedmef.runs.records import Round
from tests.federation.small import TINY, AfterRounds, digest, interrupted_after


def attempts(path: Path, experiment: Experiment) -> list[Callable[[], object]]:
    return [
        lambda: fedmef.run(experiment, path),
        lambda: fedmef.run(experiment, path, overwrite=True),
        lambda: fedmef.resume(path),
        lambda: fedmef.resume(path, {"rounds": 5}),
    ]


def test_a_live_run_is_not_run_again_nor_resumed_nor_overwritten(tmp_path: Path) -> None:
    path, experiment = tmp_path / "run", Experiment(**{**TINY, "rounds": 2})
    whole = fedmef.run(experiment, tmp_path / "whole")
    refused = []

    def interfere(record: Round) -> None:
        for attempt in attempts(path, experiment):
            with pytest.raises(UserError, match=r"is being written by process \d+ on .+ since") as error:
                attempt()
            refused.append(error)

    run = fedmef.run(experiment, path, callbacks=[AfterRounds(interfere)])
    assert len(refused) == 8
    assert digest(run.path) == digest(whole.path)
    assert [record.round for record in run.rounds] == [0, 1]
    assert not (path / "lock").exists()


def test_two_that_begin_at_once_do_not_mix(tmp_path: Path) -> None:
    """Both have found the directory free; the second comes when the first has just written its files."""
    path, experiment = tmp_path / "run", Experiment(**TINY)

    class Second(AfterRounds):
        def run_begins(self, run: fedmef.Run) -> None:
            with pytest.raises(UserError, match="is being written"):
                fedmef.run(experiment, path, overwrite=True)

    assert fedmef.run(experiment, path, callbacks=[Second(lambda record: None)]).finished


def test_a_resumed_run_is_locked_too(tmp_path: Path) -> None:
    path, experiment = tmp_path / "run", Experiment(**{**TINY, "rounds": 2})
    with pytest.raises(KeyboardInterrupt):
        fedmef.run(experiment, path, callbacks=[interrupted_after(1)])

    def interfere(record: Round) -> None:
        with pytest.raises(UserError, match="is being written"):
            fedmef.resume(path)

    assert fedmef.resume(path, callbacks=[AfterRounds(interfere)]).finished
    assert fedmef.resume(path).finished  # nothing is left to write, so nobody has to wait


@pytest.mark.parametrize("engine", ["inline", "processes"])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_run_whose_directory_is_removed_stops_and_makes_no_other(
    tmp_path: Path, engine: str, replaced: bool
) -> None:
    path = tmp_path / "run"
    experiment = Experiment(**{**TINY, "rounds": 3, "engine": engine, "workers": 1})

    def remove(record: Round) -> None:
        shutil.rmtree(path)
        if replaced:
            path.mkdir()
            (path / "mine").touch()

    with pytest.raises(FedmefError, match="was removed or replaced in the middle of the run"):
        fedmef.run(experiment, path, callbacks=[AfterRounds(remove)])
    if replaced:  # the store of the devices may be there: the parent is
        assert not any((path / name).exists() for name in ("metrics.jsonl", "config.toml", "summary.json"))
    else:
        assert not path.exists()
