"""Where the runs of a study are, and which of another one it takes over."""

from pathlib import Path
from typing import Any

import pytest

from fedmef.errors import UserError
from fedmef.experiment.settings import Experiment
from fedmef.federation.loop import versions
from fedmef.runs.directory import Run
from fedmef.studies import STUDIES, find_study
from fedmef.studies.adoption import (
    ADOPTED_FILES,
    adopt_finished,
    check_directory,
    chosen_cases,
    default_directory,
    find_finished,
)
from fedmef.studies.paper.scales import SCALES
from tests.small import small, write_run

ASKED = small(rounds=1)


def finished(path: Path, experiment: Experiment = ASKED, fedmef: str | None = None) -> Run:
    of_now: dict[str, Any] = {**versions(), **({"fedmef": fedmef} if fedmef else {})}
    return write_run(path, experiment, [0.5], **of_now)


def test_every_study_and_scale_has_a_place_of_its_own() -> None:
    places = {default_directory(find_study(name), scale) for name in STUDIES for scale in SCALES}
    assert len(places) == len(STUDIES) * len(SCALES)


def test_a_directory_of_another_study_or_scale_is_refused(tmp_path: Path) -> None:
    (tmp_path / "fedmef-period10-seed0").mkdir()
    (tmp_path / "fedmef-period10-seed0" / "config.toml").write_text("")
    check_directory(find_study("adjustment_period"), "paper", tmp_path)
    with pytest.raises(UserError, match="no part of adjustment_period at smoke scale"):
        check_directory(find_study("adjustment_period"), "smoke", tmp_path)
    with pytest.raises(UserError, match="no part of table1"):
        check_directory(find_study("table1"), "paper", tmp_path)


def test_a_part_of_a_name_lies_between_hyphens() -> None:
    experiments = {f"fedmef-sparsity{sparsity}-seed0": ASKED for sparsity in (0.9, 0.95)}
    assert list(chosen_cases(experiments, ["sparsity0.9"])) == ["fedmef-sparsity0.9-seed0"]
    assert list(chosen_cases(experiments, ["seed0"])) == list(experiments)
    assert list(chosen_cases(experiments, [])) == list(experiments)
    with pytest.raises(UserError, match=r"--only sparsity0: .* fedmef-sparsity0\.9, fedmef-sparsity0\.95"):
        chosen_cases(experiments, ["sparsity0"])


def test_a_run_of_the_same_experiment_is_copied_whatever_machine_it_ran_on(tmp_path: Path) -> None:
    there = finished(tmp_path / "reproduce-one-smoke" / "a-seed0", ASKED.model_copy(update={"workers": 7}))
    (there.path / "tensorboard").mkdir()
    out = tmp_path / "reproduce-two-smoke"
    assert adopt_finished({"b-seed0": ASKED, "c-seed0": small(rounds=1, alpha=9.0)}, out, "smoke") == 1
    assert [path.name for path in out.iterdir()] == ["b-seed0"]
    assert sorted(path.name for path in (out / "b-seed0").iterdir()) == sorted(ADOPTED_FILES)
    assert all(
        (out / "b-seed0" / name).read_bytes() == (there.path / name).read_bytes() for name in ADOPTED_FILES
    )
    assert adopt_finished({"b-seed0": ASKED}, out, "smoke") == 0  # it is there already
    assert not list(tmp_path.glob(".adopting-*"))


def test_what_is_not_whole_or_of_another_version_is_left_to_be_run(tmp_path: Path) -> None:
    other = tmp_path / "reproduce-one-smoke"
    finished(other / "old-seed0", fedmef="0.0.1")
    (finished(other / "published-seed0").path / "model.safetensors").unlink()
    linked = finished(other / "linked-seed0")
    (linked.path / "summary.json").rename(tmp_path / "summary.json")
    (linked.path / "summary.json").symlink_to(tmp_path / "summary.json")
    damaged = finished(other / "damaged-seed0")
    (damaged.path / "metrics.jsonl").write_text("{}")
    finished(tmp_path / "reproduce-one-desk" / "a-seed0")  # of another scale
    assert adopt_finished({"b-seed0": ASKED}, tmp_path / "reproduce-two-smoke", "smoke") == 0
    assert not (tmp_path / "reproduce-two-smoke").exists()


def test_a_finished_table_needs_no_models_and_its_own_directory_comes_first(tmp_path: Path) -> None:
    beside = finished(tmp_path / "aaa" / "x", fedmef="0.0.1")
    (beside.path / "model.safetensors").unlink()
    (tmp_path / "aaa" / "damaged").mkdir()
    (tmp_path / "aaa" / "damaged" / "summary.json").write_text("{}")
    experiments = {"b-seed0": ASKED, "c-seed0": small(rounds=1, alpha=9.0)}
    found = find_finished(experiments, [tmp_path / "out"])
    assert found["c-seed0"] is None
    assert found["b-seed0"] is not None
    assert found["b-seed0"].path == beside.path
    own = finished(tmp_path / "out" / "b-seed0")
    found = find_finished(experiments, [tmp_path / "out"])
    assert found["b-seed0"] is not None
    assert found["b-seed0"].path == own.path


def test_a_finished_table_takes_any_backend_and_several_places(tmp_path: Path) -> None:
    asked = ASKED.model_copy(update={"backend": "native"})
    published = finished(tmp_path / "results" / "study" / "b-seed0")
    places = [tmp_path / "runs" / "study", tmp_path / "results" / "study"]
    found = find_finished({"b-seed0": asked}, places)
    assert {name: run and run.path for name, run in found.items()} == {"b-seed0": published.path}
