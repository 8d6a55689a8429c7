"""Experiments as TOML files, and what a resumed run may change."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

import fedmef
from fedmef.errors import Interrupted, UserError
from fedmef.experiment.files import (
    changed_fields,
    parse_experiment,
    read_experiment,
    resumed_experiment,
    to_toml,
)
from fedmef.experiment.settings import MACHINE_FIELDS, Experiment, make_experiment
from fedmef.runs.directory import Run
from tests.federation.small import digest, interrupted_after

TINY: dict[str, Any] = {
    "width": 4,
    "devices": 4,
    "devices_per_round": 2,
    "local_epochs": 1,
    "batch_size": 64,
    "adjust_every": 1,
    "engine": "inline",
}


# A file.


def test_an_experiment_survives_the_way_through_its_file(tmp_path: Path) -> None:
    experiment = make_experiment(
        {
            "sparsity": 0.8,
            "augment": True,
            "adjust_until": 3,
            "delta": 1e-5,
            "device_memory": "96MB",
            "data_dir": '/a "quoted" \\ folder\n\x7f ü',
            "skip": ["head", 'it\'s "odd"'],
            "last_layers": "fc",
        }
    )
    file = tmp_path / "config.toml"
    file.write_text(to_toml(experiment), encoding="utf-8")
    assert read_experiment(file) == experiment


def test_a_file_has_every_setting_but_those_that_are_not_set() -> None:
    written = tomllib.loads(to_toml(Experiment()))
    assert written.keys() == {name for name, value in Experiment() if value is not None}
    assert written["backend"] == "auto"


def test_an_older_run_with_a_warm_up_as_long_as_itself_can_be_read() -> None:
    assert parse_experiment(b"warmup_rounds = 5\nrounds = 5\n", Path("config.toml")).warmup_rounds == 5


def test_overrides_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("sparsity = 0.8\nrounds = 7\n")
    experiment = read_experiment(file, {"sparsity": "0.5"})
    assert (experiment.sparsity, experiment.rounds) == (0.5, 7)


@pytest.mark.parametrize("content", [b"sparsity = ", b"\xff\xfe", b"#" * (2**20 + 1), None])
def test_an_unreadable_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "config.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError, match=r"config\.toml"):
        read_experiment(file)


def test_an_unknown_setting_in_a_file_suggests_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('device = "cpu"\n')
    with pytest.raises(UserError, match="unknown setting 'device'"):
        read_experiment(file)


# What may change.


def test_every_changed_field_is_named() -> None:
    with pytest.raises(
        UserError, match=r"sparsity = 0\.9 there, 0\.5 here; extrusion = 0\.1 there, 2\.0 here"
    ):
        resumed_experiment(Experiment(), {"sparsity": 0.5, "extrusion": 2, "workers": 3})


def test_only_what_may_not_change_is_a_change() -> None:
    there, here = Experiment(), Experiment(workers=3, accelerator="cuda", sparsity=0.5)
    assert changed_fields(there, here, MACHINE_FIELDS) == ["sparsity = 0.9 there, 0.5 here"]
    assert changed_fields(there, there, frozenset()) == []


def test_what_is_given_again_unchanged_is_no_change() -> None:
    assert resumed_experiment(Experiment(), {"sparsity": "0.9", "workers": 3}).workers == 3


def test_another_backend_would_give_other_bits() -> None:
    with pytest.raises(UserError, match="backend = auto there, torch here"):
        resumed_experiment(Experiment(), {"backend": "torch"})


def test_more_rounds_leave_the_schedule_of_adjustments_as_it_was() -> None:
    longer = resumed_experiment(Experiment(rounds=40), {"rounds": 80})
    assert (longer.rounds, longer.last_adjustment) == (80, 24)
    assert resumed_experiment(longer, {"rounds": 80, "adjust_until": None}) == longer


@pytest.mark.parametrize("finished", [True, False])
def test_more_rounds_end_in_the_bits_of_the_longer_run(tmp_path: Path, finished: bool) -> None:
    if finished:
        fedmef.run(Experiment(**TINY, rounds=3), tmp_path / "run")
    else:
        with pytest.raises(Interrupted):
            fedmef.run(Experiment(**TINY, rounds=3), tmp_path / "run", callbacks=[interrupted_after(2)])
    longer = fedmef.resume(tmp_path / "run", {"rounds": 4})
    assert [record.round for record in longer.rounds] == [0, 1, 2, 3]
    assert Run.open(longer.path).experiment.rounds == 4
    whole = fedmef.run(Experiment(**TINY, rounds=4, adjust_until=2), tmp_path / "whole")
    assert digest(longer.path) == digest(whole.path)


def test_fewer_rounds_than_are_done_are_refused(tmp_path: Path) -> None:
    run = fedmef.run(Experiment(**TINY, rounds=2), tmp_path / "run")
    with pytest.raises(UserError, match=r"rounds = 1: .* has done 2 rounds already"):
        fedmef.resume(run.path, {"rounds": 1})


def test_a_run_that_is_cut_short_is_scored_at_its_end(tmp_path: Path) -> None:
    settings = {**TINY, "adjust_until": 0, "evaluate_every": 2}
    with pytest.raises(Interrupted):
        fedmef.run(Experiment(**settings, rounds=10), tmp_path / "run", callbacks=[interrupted_after(3)])
    cut = fedmef.resume(tmp_path / "run", {"rounds": 3})
    whole = fedmef.run(Experiment(**settings, rounds=3), tmp_path / "whole")
    assert digest(cut.path) == digest(whole.path)
    same = {"test_accuracy", "test_loss", "best_test_accuracy", "rounds"}
    assert cut.summary.model_dump(include=same) == whole.summary.model_dump(include=same)
