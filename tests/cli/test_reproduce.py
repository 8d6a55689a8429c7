"""`fedmef reproduce` as a user meets it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedmef.device.training import LocalTraining
from fedmef.errors import FedmefError
from fedmef.methods import Extras, Job
from fedmef.methods.fedmef import FedMef
from fedmef.studies import STUDIES, find_study
from fedmef.studies.adoption import ADOPTED_FILES
from fedmef.studies.paper.base import Case
from fedmef.studies.paper.scales import Scale
from tests.cli.invoking import Ended, Invoke, check_mistake
from tests.small import SMALL, write_run


class Diverging(FedMef):
    def train(self, local: LocalTraining, job: Job) -> Extras:
        raise FedmefError("its training diverged")


def two_cases(scale: Scale) -> list[Case]:
    own = f"{__name__}:{Diverging.__name__}"
    return [
        Case("good", {"method": "good"}, SMALL, {"accuracy % (paper)": 78.1}),
        Case("bad", {"method": "bad"}, {**SMALL, "method": own}),
    ]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_list_names_every_study(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    code, printed, _ = invoke("reproduce", "--list")
    assert code == 0
    assert [line.split()[0] for line in printed.splitlines()] == list(STUDIES)
    monkeypatch.setenv("COLUMNS", "50")
    narrow = invoke("reproduce", "--list").printed
    assert max(map(len, narrow.splitlines())) <= 50
    assert [line.split()[0] for line in narrow.splitlines() if line[0] != " "] == list(STUDIES)
    assert list(json.loads(invoke("reproduce", "--list", "--json").printed)) == list(STUDIES)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "name a study"),
        (["tabel1"], "did you mean 'table1'"),
        (["table1", "--scale", "papers"], "did you mean 'paper'"),
        (["table1", "--scale", "smoke", "--seeds", "0"], "seeds = 0"),
        (
            ["table1", "--scale", "smoke", "--only", "sparsity0"],
            "--only sparsity0: no run has this",
        ),
        (["table1", "--scale", "smoke", "--engine", "steam"], "engine = 'steam'"),
        (["table1", "--scale", "smoke", "--accelerator", "abacus"], "accelerator = 'abacus'"),
    ],
)
def test_a_mistake_is_a_line_and_starts_nothing(
    arguments: list[str], expected: str, tmp_path: Path, invoke: Invoke
) -> None:
    check_mistake(invoke("reproduce", *arguments), expected)
    assert list(tmp_path.iterdir()) == []


def test_finished_runs_are_reused_and_the_table_has_both_numbers(tmp_path: Path, invoke: Invoke) -> None:
    arguments = ["reproduce", "adjustment_period", "--scale", "smoke"]
    code, printed, _ = invoke(*arguments)
    assert code == 0
    assert "(ours)" in printed
    assert "61.94" in printed  # the paper's
    assert "smoke scale: data digits" in printed
    assert "The claim" not in printed  # nothing can be claimed at smoke scale
    folder = tmp_path / "runs" / "reproduce-adjustment_period-smoke"
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*.*")}
    code, again, told = invoke(*arguments)
    assert (code, again) == (0, printed)
    assert "9 runs, 9 of them finished before, 0 rounds to do" in told
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*.*")} == before

    code, printed, errors = invoke(*arguments[:2], "--scale", "desk", "--out", str(folder))
    assert (code, printed) == (2, "")
    assert "no part of adjustment_period at desk scale" in errors


def test_only_some_rows_and_runs_of_another_study_are_taken_over(tmp_path: Path, invoke: Invoke) -> None:
    def reproduce(study: str, *parts: str) -> tuple[dict[str, Any], str]:
        only = [word for part in parts for word in ("--only", part)]
        arguments = ["reproduce", study, "--scale", "smoke", "--json", *only]
        code, printed, told = invoke(*arguments)
        assert code == 0
        return json.loads(printed), told

    first, _ = reproduce("ablation", "fedmef", "fedmef_no_bae")
    assert [row["method"] for row in first["rows"]] == ["fedmef", "fedmef_no_bae"]
    damaged = tmp_path / "runs" / "reproduce-old-smoke" / "run"
    damaged.mkdir(parents=True)
    for file in ADOPTED_FILES:
        (damaged / file).write_text("old_knob = 1")
    _, told = reproduce("post_pruning_drop", "fedmef", "fedmef_no_bae")
    assert "2 runs taken over from runs" in told
    assert "2 runs, 2 of them finished before" in told
    runs = tmp_path / "runs"
    models = [
        (runs / folder / "model.safetensors").read_bytes()
        for folder in (
            "reproduce-ablation-smoke/fedmef-sparsity0.9-seed0",
            "reproduce-post_pruning_drop-smoke/fedmef-seed0",
        )
    ]
    assert models[0] == models[1]
    _, told = reproduce("post_pruning_drop", "fedtiny")
    assert "taken over" not in told


def test_the_finished_table_trains_nothing_and_looks_next_to_it(
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reproduce(*words: str) -> Ended:
        return invoke("reproduce", *words, "--scale", "smoke")

    code, _, errors = reproduce("ablation", "--finished")
    assert (code, "there is no finished run of ablation in runs" in errors) == (2, True)
    monkeypatch.setenv("COLUMNS", "60")
    code, printed, told = reproduce("ablation", "--only", "fedmef")
    assert (code, "scale: 1 run, " in told) == (0, True)
    assert max(map(len, printed.splitlines())) <= 60  # the caption too
    run = tmp_path / "runs" / "reproduce-ablation-smoke" / "fedmef-sparsity0.9-seed0"
    (run / "model.safetensors").unlink()  # as in results/
    files = sorted(tmp_path.rglob("*"))
    code, printed, told = reproduce("post_pruning_drop", "--finished", "--json")
    assert code == 0
    assert (
        told == "post_pruning_drop at smoke scale: 1 of 3 runs finished, in runs/reproduce-ablation-smoke\n"
    )
    drops = {
        row["method"]: row["drop (ours)"] for row in json.loads(printed)["rows"] if row["round"] == "all"
    }
    assert drops["fedtiny"] is None
    assert drops["fedmef"] is not None
    assert sorted(tmp_path.rglob("*")) == files
    assert "nothing to --overwrite" in reproduce("ablation", "--finished", "--overwrite")[2]


def test_the_finished_table_shows_what_is_published_with_all_its_seeds(
    tmp_path: Path, invoke: Invoke
) -> None:
    asked = find_study("ablation").experiments("smoke", seeds=3)
    for seed, accuracy in ((0, 0.5), (2, 0.52)):
        name = f"fedmef-sparsity0.9-seed{seed}"
        write_run(tmp_path / "results" / "smoke" / "ablation" / name, asked[name], [None, None, accuracy])
    arguments = ["reproduce", "ablation", "--scale", "smoke", "--finished", "--json"]
    code, printed, told = invoke(*arguments)
    assert code == 0
    assert told == "ablation at smoke scale: 2 of 12 runs finished, in results/smoke/ablation\n"
    answer = json.loads(printed)
    assert answer["runs"] == "results/smoke/ablation"
    first = answer["rows"][0]
    assert (first["method"], first["finished seeds"]) == ("fedmef", "2/3")
    assert first["accuracy % (ours)"] == pytest.approx(51)
    _, printed, _ = invoke(*arguments, "--seeds", "5")
    assert json.loads(printed)["rows"][0]["finished seeds"] == "2/5"
    _, printed, told = invoke(*arguments, "--out", "elsewhere")
    assert "there is no finished run of ablation in elsewhere, or next to it" in told


def test_a_failed_run_leaves_the_others_in_the_table(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = replace(find_study("adjustment_period"), name="broken", cases=two_cases)
    monkeypatch.setattr("fedmef.cli.reproduce.find_study", {"broken": broken}.__getitem__)
    code, printed, errors = invoke("reproduce", "broken", "--scale", "smoke")
    assert code == 1
    assert "78.1" in printed
    assert "failed: bad-seed0: its training diverged" in printed
    assert "1 of 2 runs failed" in errors
    code, printed, _ = invoke("reproduce", "broken", "--scale", "smoke", "--json")
    answer = json.loads(printed)
    assert code == 1
    assert [failure["reason"] for failure in answer["failures"]] == ["its training diverged"]
    assert answer["rows"][0]["accuracy % (ours)"] is not None
