"""`fedmef compare` as a user meets it."""

import json
from pathlib import Path

import pytest

from fedmef.runs.directory import Run
from tests.cli.invoking import QUICK, Invoke, check_mistake


def test_a_comparison_ends_with_a_row_for_each_method_and_is_reused(tmp_path: Path, invoke: Invoke) -> None:
    methods = ["fedavg", "fl_pqsu", "feddst", "fedtiny", "fedmef"]
    out, table = tmp_path / "runs", tmp_path / "table.csv"
    arguments = ["compare", "--methods", ",".join(methods), "--dataset", "digits", "--seeds", "2", *QUICK]
    arguments += ["--rounds", "2", "--out", str(out)]
    code, printed, progress = invoke(*arguments)
    assert (code, progress.splitlines()[0]) == (0, f"10 runs, 20 rounds to do, in {out}")
    heading, *lines, where, report = printed.splitlines()
    rows, notes = lines[:5], lines[5:]
    assert heading.split()[:2] == ["method", "sparsity"]
    assert [row.split()[0] for row in rows] == methods
    assert all("±" in row and len(row) <= 80 for row in rows)
    assert all("learned nothing" in note for note in notes)  # in two rounds
    assert where == f"10 runs in {out}"
    assert report == f"report: {out / 'report' / 'report.html'}"
    page = (out / "report" / "report.html").read_text()
    for name in ("headline-table", "cost-table"):
        assert page.partition(f'id="{name}"')[2].partition("</table>")[0].count('<tr><th scope="row"') == 5

    code, printed, _ = invoke(*arguments, "--json", "--csv", str(table))
    result = json.loads(printed)
    assert (code, result["runs"], result["failures"]) == (0, str(out), [])
    assert result["report"] == str(out / "report" / "report.html")
    assert [row["method"] for row in result["rows"]] == methods
    assert all(row["seeds"] == [0, 1] for row in result["rows"])
    lines = table.read_text().splitlines()
    assert lines[0].startswith("method,sparsity,seeds,")
    assert lines[1].startswith("fedavg,0.0,0 1,,0.")
    assert len(lines) == 6

    _, again, told = invoke(*arguments, "--no-report")
    assert again.splitlines()[-1].endswith("10 of them finished before")
    assert told == f"10 runs, 10 of them finished before, 0 rounds to do, in {out}\n"

    (out / "report" / "report.html").unlink()
    (out / "report" / "report.html").mkdir()
    code, printed, errors = invoke(*arguments)
    assert code == 1
    assert [row.split()[0] for row in printed.splitlines()[1:6]] == methods  # the table is not lost
    assert "cannot write the report" in errors
    assert errors.splitlines()[-1] == "fedmef: the table is complete, but not everything could be written"


def test_a_failed_run_of_a_comparison_is_reported_and_gives_exit_code_one(
    tmp_path: Path, invoke: Invoke
) -> None:
    arguments = ["compare", "--methods", "fedavg,fedmef", *QUICK, "--rounds", "2", "--out", str(tmp_path)]
    diverges = ["--learning-rate", "1e30"]
    code, printed, errors = invoke(*arguments, *diverges)
    assert code == 1
    assert "failed: fedavg-seed0: round 1: " in printed
    assert "lower learning_rate" in printed
    announcement, error = errors.splitlines()
    assert announcement.startswith("2 runs, 4 rounds")
    assert error.startswith("fedmef: ")
    assert "of 2 runs failed" in error


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--methods", "fedavg,fedmeff"], "did you mean 'fedmef'"),
        (["--methods", "fedavg,,fedmef"], "--methods 'fedavg,,fedmef': an item is missing"),
        (["--methods", ""], "--methods ''"),
        (["--methods", "fedavg,fedavg"], "methods: fedavg is there twice"),
        (["--methods", "fedavg", "--method", "fedmef"], "--method and --methods"),
        (["--seeds", "2", "--seed", "1"], "--seed and --seeds"),
        (["--sparsities", "0.5", "--sparsity", "0.9"], "--sparsity and --sparsities"),
        (["--seeds", "0"], "--seeds 0 means 0 seeds"),
        (["--seeds", "2024"], "--seed 2024 is that seed alone"),
        (["--seeds", "1,one"], "seed = 'one'"),
        (["--sparsities", "0.5,1"], "sparsity = '1'"),
        (["--sparsities", "0.5,0.50"], "sparsities: 0.5 is there twice"),
        (["--dataset", "cifar"], "did you mean 'cifar10'"),
        (["--model", "resnet81"], "did you mean 'resnet18'"),
        (["--accelerator", "cuda:7"], "accelerator = 'cuda:7'"),
        (["--csv", "nowhere/table.csv"], "--csv nowhere/table.csv"),
        (["nowhere.toml"], "nowhere.toml"),
    ],
)
def test_a_mistake_in_a_comparison_is_one_line_and_exit_code_two(
    arguments: list[str], expected: str, tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_mistake(invoke("compare", *arguments), expected)
    assert list(tmp_path.iterdir()) == []


def test_a_comparison_has_a_place_of_its_own_and_refuses_another_experiment_there(
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.toml").write_text("seed = 5\nsparsity = 0.5\nrounds = 1\n")
    arguments = ["compare", "my.toml", *QUICK, "--method", "fedmef", "--seeds", "2", "--no-report"]
    assert invoke(*arguments)[0] == 0
    runs = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("runs/*/*"))
    folder = "runs/compare-digits-small_cnn"
    assert runs == [f"{folder}/fedmef-sparsity0.5-seed{seed}" for seed in (5, 6)]

    ended = invoke(*arguments, "--rounds", "2")
    check_mistake(ended, "rounds = 1 there, 2 here")
    assert "--overwrite" in ended.errors


def test_single_methods_may_have_rates_of_their_own(tmp_path: Path, invoke: Invoke) -> None:
    arguments = ["--methods", "fedavg,fedtiny,fedmef", "--rounds", "1", *QUICK, "--dataset", "digits"]
    code, _, _ = invoke(
        "compare", *arguments, "--learning-rates", "fedtiny=0.25", "--out", str(tmp_path), "--no-report"
    )
    assert code == 0
    rates = {run.name: Run.open(run).rounds[0].learning_rate for run in tmp_path.iterdir()}
    assert rates == {"fedavg-seed0": 0.3, "fedtiny-sparsity0.9-seed0": 0.25, "fedmef-sparsity0.9-seed0": 1.0}


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ("0.3", "write a method and its rate"),
        ("fedavg=fast", "learning_rate = 'fast'"),
        ("fedavg=-1", "learning_rate = '-1'"),
        ("fedmef=1", "'fedmef' is not one of the methods compared"),
    ],
)
def test_a_rate_that_cannot_be_read_is_a_mistake(invoke: Invoke, rates: str, expected: str) -> None:
    check_mistake(invoke("compare", "--methods", "fedavg", "--learning-rates", rates), expected)
