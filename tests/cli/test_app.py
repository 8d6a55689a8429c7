"""The command line as a user meets it: what it prints, and its exit codes."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

from fedmef import Experiment
from fedmef.cli import app as cli
from fedmef.cli import run as run_command
from fedmef.experiment.settings import read_experiment
from tests.report.finished_runs import experiment, write_run

QUICK = [
    "--width",
    "8",
    "--devices",
    "4",
    "--devices-per-round",
    "2",
    "--local-epochs",
    "1",
    "--engine",
    "inline",
]


def invoke(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["fedmef", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


def test_a_run_can_be_evaluated_from_its_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = str(tmp_path / "run")
    code, printed, progress = invoke(["run", *QUICK, "--rounds", "2", "--out", out], capsys, monkeypatch)
    assert (code, progress) == (0, "")  # quiet when nobody watches
    assert "test accuracy" in printed
    assert out in printed

    code, printed, _ = invoke(["evaluate", out, "--json"], capsys, monkeypatch)
    assert code == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert json.loads(printed)["test_accuracy"] == summary["test_accuracy"]


def test_json_output_is_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["run", *QUICK, "--rounds", "1", "--out", str(tmp_path / "run"), "--json"]
    code, printed, _ = invoke(arguments, capsys, monkeypatch)
    assert code == 0
    assert json.loads(printed)["rounds"] == 1


def test_a_file_and_options_make_an_experiment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my.toml").write_text("rounds = 3\nsparsity = 0.5\n")
    arguments = ["run", str(tmp_path / "my.toml"), *QUICK, "--rounds", "1", "--out", str(tmp_path / "run")]
    assert invoke(arguments, capsys, monkeypatch)[0] == 0
    config = (tmp_path / "run" / "config.toml").read_text()
    assert "rounds = 1\n" in config
    assert "sparsity = 0.5\n" in config


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", "--sparsity", "1"], "sparsity = '1'"),
        (["run", "--sparsity", "-0.5"], "sparsity = '-0.5'"),
        (["run", "--method", "fedmeff"], "did you mean 'fedmef'"),
        (["run", "--model", "resnet81"], "did you mean 'resnet18'"),
        (["run", "--dataset", "cifar"], "did you mean 'cifar10'"),
        (["run", "--alpha", "0"], "alpha = '0'"),
        (["run", "--devices-per-round", "21"], "there are only 20 devices"),
        (["run", "--device", "cuda:7"], "device = 'cuda:7'"),
        (["run", "--device", "tpu"], "device = 'tpu'"),
        (["run", "--devices", "100000", "--devices-per-round", "1"], "devices = 100000"),
        (["run", "nowhere.toml"], "nowhere.toml"),
        (["run", "--no-such-option"], "--no-such-option"),
        (["run", "--resume", "nowhere"], "nowhere"),
        (["run", "--device-memory", "96"], "device_memory = '96'"),
        (["run", "--device-memory", "0MB"], "device_memory = '0MB'"),
        (["run", "--device-memory", "-1MB"], "device_memory = '-1MB'"),
        (["run", "--device-memory", "abc"], "device_memory = 'abc'"),
        (["plan"], "--device-memory 96MB"),
        (["plan", "--device-memory", "64MB", "--image-shape", "32x32"], "--image-shape 32x32"),
        (["plan", "--device-memory", "64MB", "--image-shape", "0x32x32"], "--image-shape 0x32x32"),
        (["plan", "--device-memory", "64MB", "--classes", "4"], "it goes with --image-shape"),
        (["plan", "--device-memory", "64MB", "--model", "resnet81"], "did you mean 'resnet18'"),
        (["evaluate", "nowhere"], "nowhere"),
        (["data", "mnist"], "unknown dataset 'mnist'"),
        (["data", "cifar10", "--no-download", "--data-dir", "empty"], "cifar10"),
        (["frobnicate"], "frobnicate"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_two(
    arguments: list[str],
    expected: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, printed, errors = invoke(arguments, capsys, monkeypatch)
    assert (code, printed) == (2, "")
    assert errors.startswith("fedmef: ")
    assert errors.count("\n") == 1
    assert expected in errors
    assert list(tmp_path.iterdir()) == []  # nothing half-written


@pytest.mark.parametrize("damage", [b"", b"not a model", b"\x08\0\0\0\0\0\0\0{}      "])
def test_a_damaged_run_directory_is_one_line_and_exit_code_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, damage: bytes
) -> None:
    (tmp_path / "config.toml").write_text("rounds = 1\n")
    (tmp_path / "summary.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(damage)
    code, _, errors = invoke(["evaluate", str(tmp_path)], capsys, monkeypatch)
    assert (code, errors.count("\n")) == (2, 1)
    assert "model.safetensors is damaged" in errors


def test_corrupt_data_files_are_one_line_and_exit_code_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in ["batches.meta", "test_batch", *(f"data_batch_{number}" for number in range(1, 6))]:
        (folder / name).write_bytes(b"\x80\x02nonsense")
    arguments = ["run", "--dataset", "cifar10", "--data-dir", str(tmp_path), "--out", str(tmp_path / "run")]
    code, _, errors = invoke(arguments, capsys, monkeypatch)
    assert (code, errors.count("\n")) == (2, 1)
    assert "cifar-10-batches-py" in errors
    assert not (tmp_path / "run").exists()


def test_debug_shows_where_an_error_comes_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, errors = invoke(["run", "--alpha", "0", "--debug"], capsys, monkeypatch)
    assert code == 2
    assert "Traceback" in errors


@pytest.mark.parametrize("arguments", [[], ["--help"], ["run", "--help"], ["evaluate", "-h"], ["data", "-h"]])
def test_help_is_success(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, printed, _ = invoke(arguments, capsys, monkeypatch)
    assert code == 0
    assert "Usage" in printed


def test_the_help_of_run_names_every_knob(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedmef.experiment.settings import Experiment

    monkeypatch.setenv("COLUMNS", "200")
    _, printed, _ = invoke(["run", "--help"], capsys, monkeypatch)
    missing = [name for name in Experiment.model_fields if f"--{name.replace('_', '-')}" not in printed]
    assert missing == []


@pytest.mark.parametrize("columns", ["40", "60", "80", "200"])
@pytest.mark.parametrize("command", ["run", "compare", "reproduce", "cost", "plan"])
def test_help_cuts_no_name_however_narrow_the_terminal(
    command: str, columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    _, printed, _ = invoke([command, "--help"], capsys, monkeypatch)
    shown = typer.main.get_command(cli.app).commands[command]  # type: ignore[attr-defined]
    names = {name for option in shown.params for name in (*option.opts, *option.secondary_opts)}
    assert [name for name in names if name.startswith("--") and name not in printed] == []
    assert "…" not in printed


def test_help_groups_options_and_keeps_square_brackets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, printed, _ = invoke(["run", "--help"], capsys, monkeypatch)
    assert "\nFederation:\n  --devices N" in printed
    assert "[[fault]] tables" in printed
    assert "(default )" not in printed
    _, printed, _ = invoke(["reproduce", "--help"], capsys, monkeypatch)
    assert "  [default: desk]" in printed
    assert "auto, inline, processes or flower" in printed
    _, printed, _ = invoke(["--help"], capsys, monkeypatch)
    assert "..." not in printed.partition("Commands:")[2]


def test_a_data_set_is_described(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, printed, _ = invoke(["data", "digits", "--json"], capsys, monkeypatch)
    facts = json.loads(printed)
    assert (code, facts["classes"], facts["train"] + facts["test"]) == (0, 10, 1797)


def test_control_c_says_how_to_resume_and_leaves_no_process(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "fedmef",
        "run",
        *QUICK[:-1],
        "processes",
        "--workers",
        "2",
        "--rounds",
        "500",
    ]
    process = subprocess.Popen(
        [*command, "--out", str(out)], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 180
    while not (out / "checkpoint.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert f"fedmef run --resume {out}" in errors
    assert "Traceback" not in errors
    assert group_ends(process.pid)


def group_ends(group: int) -> bool:
    """Whether every process of a group ends within some seconds; Python's own resource tracker takes one."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def test_a_device_that_cannot_fit_is_refused_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedmef.costs import limit

    monkeypatch.setattr(limit, "_once", lambda experiment, shape, classes: 1000 * experiment.batch_size)
    monkeypatch.chdir(tmp_path)
    arguments = ["run", *QUICK, "--batch-size", "16", "--device-memory", "10kB"]
    code, printed, errors = invoke(arguments, capsys, monkeypatch)
    assert (code, printed, errors.count("\n")) == (2, "", 1)
    assert "needs 16.0 kB" in errors
    assert "batch_size = 9 (9.0 kB)" in errors
    assert list(tmp_path.iterdir()) == []


def test_a_plan_is_a_ranked_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedmef.costs import limit

    def needs(experiment: Experiment, shape: object, classes: int) -> int:
        return round(1e6 * experiment.batch_size * (1 - experiment.sparsity))

    monkeypatch.setattr(limit, "_once", needs)
    arguments = ["plan", "--image-shape", "3x32x32", "--batch-size", "64", "--device-memory", "10MB"]
    code, printed, _ = invoke(arguments, capsys, monkeypatch)
    assert code == 0
    *_, about, command = printed.splitlines()
    assert "on digits (--dataset takes another)" in about
    assert command == (
        "fedmef run --batch-size 16 --device-memory 10MB "
        "--sparsity 0.5 --activation-sparsity 0.5 --cache-dtype fp32"
    )
    code, printed, _ = invoke([*arguments, "--json", "--sparsity", "0.9"], capsys, monkeypatch)
    ranked = json.loads(printed)["ranked"]
    chosen = [row for row in ranked if row["chosen"]]
    assert [(row["sparsity"], row["batch_size"], row["needed"]) for row in chosen] == [(0.9, 64, 6_400_000)]


def test_a_plan_ends_with_a_command_that_runs_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedmef.costs import limit

    monkeypatch.setattr(limit, "_once", lambda experiment, shape, classes: 1000 * experiment.batch_size)
    config = tmp_path / "my own.toml"
    config.write_text('device_memory = "10kB"\nrounds = 1\n')
    options = ["--no-remember-masks", "--augment", "--sparsity", "0.8", "--batch-size", "16"]
    code, printed, _ = invoke(["plan", str(config), *QUICK, *options], capsys, monkeypatch)
    assert code == 0
    program, *command = shlex.split(printed.splitlines()[-1])
    assert program == "fedmef"
    assert invoke([*command, "--out", str(tmp_path / "run")], capsys, monkeypatch)[0] == 0
    experiment = read_experiment(tmp_path / "run" / "config.toml")
    assert (experiment.sparsity, experiment.batch_size, experiment.width) == (0.8, 8, 8)
    assert (experiment.remember_masks, experiment.augment) == (False, True)


@pytest.mark.parametrize(
    ("method", "expected", "expected_code"),
    [
        ("Forgetful", "method 'own_methods:Forgetful': prepare returned NoneType", 2),
        ("Broken", "failed: ValueError: boom (--debug shows where)", 1),
    ],
)
def test_what_is_wrong_with_a_users_own_method_is_said_in_a_line(
    method: str,
    expected: str,
    expected_code: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "own_methods.py").write_text(
        "from fedmef.methods import Method\n"
        "class Forgetful(Method):\n"
        "    def prepare(self, network):\n"
        "        super().prepare(network)\n"
        "class Broken(Method):\n"
        "    def train(self, local, plan):\n"
        "        raise ValueError('boom')\n"
    )
    monkeypatch.chdir(tmp_path)
    arguments = ["run", *QUICK, "--method", f"own_methods:{method}", "--out", str(tmp_path / "run")]
    code, _, errors = invoke(arguments, capsys, monkeypatch)
    assert (code, errors.count("\n")) == (expected_code, 1)
    assert expected in errors


def test_faults_come_from_an_option_and_a_file_and_show_in_the_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text('[[fault]]\nround = 0\ndevice = 1\nfault = "kill"\n')
    out = tmp_path / "run"
    arguments = ["run", *QUICK, "--devices-per-round", "4", "--rounds", "1", "--out", str(out)]
    faults = ["--faults", "corrupt@0:2", "--fault-plan", str(plan)]
    code, printed, _ = invoke([*arguments, *faults], capsys, monkeypatch)
    assert code == 0
    assert "1 lost, 1 rejected" in printed
    assert 'faults = "corrupt@0:2,kill@0:1"' in (out / "config.toml").read_text()


def published_run(path: Path) -> str:
    """Finished, but without its model, on data that are not here."""
    (write_run(path, experiment(dataset="cifar10"), [0.25, 0.5]).path / "model.safetensors").unlink()
    return str(path)


def test_a_run_published_without_its_model_says_that_it_cannot_be_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, errors = invoke(["evaluate", published_run(tmp_path / "run")], capsys, monkeypatch)
    assert (code, errors.count("\n")) == (2, 1)
    assert "finished, but was published or copied without its model" in errors


def test_a_finished_run_is_resumed_without_its_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_command, "open_dataset", lambda _: pytest.fail("there is nothing to train"))
    resume = ["run", "--resume", published_run(tmp_path / "run")]
    code, printed, errors = invoke([*resume, "--json"], capsys, monkeypatch)
    assert (code, errors) == (0, "")
    assert json.loads(printed)["test_accuracy"] == 0.5
    code, _, errors = invoke([*resume, "--sparsity", "0.5"], capsys, monkeypatch)
    assert code == 2
    assert "sparsity = 0.9 there, 0.5 here" in errors


def test_a_resumed_run_names_what_was_changed_in_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    (tmp_path / "my.toml").write_text("rounds = 1\nextrusion = 0.25\n")
    arguments = ["run", str(tmp_path / "my.toml"), *QUICK]
    assert invoke([*arguments, "--out", str(out)], capsys, monkeypatch)[0] == 0
    code, _, errors = invoke(["run", str(tmp_path / "my.toml"), "--resume", str(out)], capsys, monkeypatch)
    assert code == 2
    assert "width = 8 there, None here" in errors
    code, printed, _ = invoke([*arguments, "--rounds", "2", "--resume", str(out)], capsys, monkeypatch)
    assert code == 0
    assert "2, " in printed
