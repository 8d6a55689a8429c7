"""`fedmef run` as a user meets it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedmef.costs import device_process
from fedmef.device.choice import missing_kernels
from fedmef.federation import api
from fedmef.sparsity.network import Network
from tests.cli.invoking import QUICK, Invoke, check_mistake
from tests.costs.formula import process
from tests.small import small, write_run


def test_a_run_says_what_it_came_to_and_where_it_is(tmp_path: Path, invoke: Invoke) -> None:
    out = tmp_path / "run"
    code, printed, progress = invoke("run", *QUICK, "--rounds", "2", "--out", str(out))
    assert (code, progress) == (0, "")  # quiet when nobody watches
    summary = json.loads((out / "summary.json").read_text())
    names = [line.split("  ")[0] for line in printed.splitlines()]
    expected = ["test accuracy", "worst class", "devices", "parameters", "rounds", "sent", "time"]
    assert names == [*expected, "backend", "directory"]
    assert f"{summary['test_accuracy']:.2%}" in printed
    assert f"{summary['parameters']:,} of {summary['parameters_if_dense']:,}" in printed
    assert str(out) in printed


def test_json_output_is_json(tmp_path: Path, invoke: Invoke) -> None:
    ended = invoke("run", *QUICK, "--rounds", "1", "--out", str(tmp_path / "run"), "--json")
    assert ended.code == 0
    answer = json.loads(ended.printed)
    assert (answer["rounds"], answer["run"]) == (1, str(tmp_path / "run"))


def test_a_file_and_options_make_an_experiment(tmp_path: Path, invoke: Invoke) -> None:
    (tmp_path / "my.toml").write_text("rounds = 3\nsparsity = 0.5\n")
    arguments = ["run", str(tmp_path / "my.toml"), *QUICK, "--rounds", "1", "--out", str(tmp_path / "run")]
    assert invoke(*arguments).code == 0
    config = (tmp_path / "run" / "config.toml").read_text()
    assert "rounds = 1\n" in config
    assert "sparsity = 0.5\n" in config


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--sparsity", "1"], "sparsity = '1'"),
        (["--sparsity", "-0.5"], "sparsity = '-0.5'"),
        (["--method", "fedmeff"], "did you mean 'fedmef'"),
        (["--model", "resnet81"], "did you mean 'resnet18'"),
        (["--dataset", "cifar"], "did you mean 'cifar10'"),
        (["--alpha", "0"], "alpha = '0'"),
        (["--devices-per-round", "21"], "there are only 20 devices"),
        (["--accelerator", "cuda:7"], "accelerator = 'cuda:7'"),
        (["--accelerator", "tpu"], "accelerator = 'tpu'"),
        (["--backend", "native", "--method", "prunefl"], "backend = 'native'"),
        (["--devices", "100000", "--devices-per-round", "1"], "devices = 100000"),
        (["nowhere.toml"], "nowhere.toml"),
        (["--resume", "nowhere"], "nowhere"),
        (["--resume", "nowhere", "--out", "elsewhere"], "leave --out and --overwrite out"),
        (["--device-memory", "0MB"], "device_memory = '0MB'"),
        (["--device-memory", "-1MB"], "device_memory = '-1MB'"),
        (["--device-memory", "abc"], "device_memory = 'abc'"),
    ],
)
def test_a_mistake_is_a_line_and_leaves_nothing_half_written(
    arguments: list[str], expected: str, tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_mistake(invoke("run", *arguments), expected)
    assert list(tmp_path.iterdir()) == []


def test_corrupt_data_files_are_a_mistake(tmp_path: Path, invoke: Invoke) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in ["batches.meta", "test_batch", *(f"data_batch_{number}" for number in range(1, 6))]:
        (folder / name).write_bytes(b"\x80\x02nonsense")
    arguments = ["run", "--dataset", "cifar10", "--data-dir", str(tmp_path), "--out", str(tmp_path / "run")]
    check_mistake(invoke(*arguments), "cifar-10-batches-py")
    assert not (tmp_path / "run").exists()


def test_control_c_says_how_to_resume_and_leaves_no_process(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-m", "fedmef", "run", *QUICK, "--engine", "processes", "--workers", "2"]
    process = subprocess.Popen(
        [*command, "--rounds", "5000", "--out", str(out)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
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


def test_control_c_before_the_first_round_says_that_nothing_was_written(
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "prepare", interrupted)
    ended = invoke("run", *QUICK, "--out", str(tmp_path / "run"))
    assert ended == (130, "", "fedmef: stopped before the first round; nothing was written\n")
    assert list(tmp_path.iterdir()) == []


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
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_process, "_once", lambda asked, *_: process(1000 * asked.batch_size))
    monkeypatch.chdir(tmp_path)
    ended = invoke("run", *QUICK, "--batch-size", "16", "--device-memory", "10kB")
    check_mistake(ended, "needs 16.0 kB")
    assert (missing_kernels() or "'fedmef plan' finds settings that fit") in ended.errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("method", "expected", "expected_code"),
    [
        ("NoMethod", "method 'own_methods:NoMethod' must be a subclass of fedmef.methods.Method", 2),
        ("Broken", "failed: ValueError: boom (--debug shows where)", 1),
    ],
)
def test_what_is_wrong_with_a_users_own_method_is_said_in_a_line(
    method: str,
    expected: str,
    expected_code: int,
    tmp_path: Path,
    invoke: Invoke,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "own_methods.py").write_text(
        "from fedmef.methods import Method\n"
        "class NoMethod:\n"
        "    pass\n"
        "class Broken(Method):\n"
        "    def train(self, local, job):\n"
        "        raise ValueError('boom')\n"
    )
    monkeypatch.chdir(tmp_path)
    out = str(tmp_path / "run")
    code, _, errors = invoke("run", *QUICK, "--method", f"own_methods:{method}", "--out", out)
    assert (code, errors.count("\n")) == (expected_code, 1)
    assert expected in errors


OWN_NETWORK = """
import torch
from torch import nn

class Network(nn.Module):
    def __init__(self, classes, channels):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(channels, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.block, self.special = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.fc = nn.Linear(8, classes)

    def forward(self, x):
        assert x.shape[1:] == (1, 8, 8)  # which symbols cannot pass
        x = torch.relu(self.norm(self.stem(x)))
        return self.fc(torch.relu(self.special(torch.relu(self.block(x)))).mean((2, 3)))

def network(classes, channels):
    return Network(classes, channels)
"""


def test_a_network_of_ones_own_has_the_knobs_of_sparsify(
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_network.py").write_text(OWN_NETWORK)
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "run"
    options = zip(QUICK[::2], QUICK[1::2], strict=True)
    quick = [word for option in options if option[0] != "--width" for word in option]
    arguments = ["run", *quick, "--rounds", "1", "--model", "own_network:network", "--out", str(out)]
    code, _, errors = invoke(*arguments, "--skip", "special", "--last-layers", "fc")
    assert (code, errors) == (
        0,
        "fedmef: every device needs PyTorch: the native kernels cannot execute this network: "
        "'norm' (GroupNorm 'norm', own_network.py line 14) needs the network's own PyTorch code\n",
    )
    layers = Network.from_json((out / "network.json").read_bytes()).layers
    assert [name for name, layer in layers.items() if layer.sparse] == ["stem", "block"]
    assert 'skip = ["special"]' in (out / "config.toml").read_text()
    check_mistake(
        invoke(*arguments[:-1], str(tmp_path / "other"), "--skip", "spezial"),
        "skip: no module of Network matches 'spezial'",
    )
    assert not (tmp_path / "other").exists()


def test_faults_come_from_an_option_and_a_file_and_show_in_the_result(tmp_path: Path, invoke: Invoke) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text('[[fault]]\nround = 0\ndevice = 1\nfault = "kill"\n')
    out = tmp_path / "run"
    arguments = ["run", *QUICK, "--devices-per-round", "4", "--rounds", "1", "--out", str(out)]
    ended = invoke(*arguments, "--faults", "corrupt@0:2", "--fault-plan", str(plan))
    assert ended.code == 0
    assert "1 lost, 1 rejected" in ended.printed
    assert 'faults = "corrupt@0:2,kill@0:1"' in (out / "config.toml").read_text()


def test_privacy_is_in_the_result(tmp_path: Path, invoke: Invoke) -> None:
    private = ["--clip-norm", "1", "--noise-multiplier", "1", "--delta", "1e-3"]
    ended = invoke("run", *QUICK, *private, "--rounds", "1", "--out", str(tmp_path / "run"))
    assert ended.code == 0
    assert "at δ = 0.001, for a device" in ended.printed


def test_a_finished_run_is_resumed_without_its_data(
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "open_dataset", lambda _: pytest.fail("there is nothing to train"))
    run = write_run(tmp_path / "run", small(dataset="cifar10"), [0.25, 0.5])
    (run.path / "model.safetensors").unlink()  # as in results/
    code, printed, errors = invoke("run", "--resume", str(run.path), "--json")
    assert (code, errors) == (0, "")
    assert json.loads(printed)["test_accuracy"] == 0.5
    ended = invoke("run", "--resume", str(run.path), "--sparsity", "0.5")
    check_mistake(ended, "sparsity = 0.9 there, 0.5 here")


def test_a_resumed_run_names_what_was_changed_in_its_file(tmp_path: Path, invoke: Invoke) -> None:
    out = tmp_path / "run"
    (tmp_path / "my.toml").write_text("rounds = 1\nextrusion = 0.25\n")
    arguments = ["run", str(tmp_path / "my.toml"), *QUICK]
    assert invoke(*arguments, "--out", str(out)).code == 0
    ended = invoke("run", str(tmp_path / "my.toml"), "--resume", str(out))
    check_mistake(ended, "width = 4 there, None here")
    code, printed, _ = invoke(*arguments, "--rounds", "2", "--resume", str(out))
    assert code == 0
    assert "2, " in printed


def test_tensorboards_files_are_written_for_a_run_that_was_finished_before(
    tmp_path: Path, invoke: Invoke
) -> None:
    pytest.importorskip("tensorboard")
    run = write_run(tmp_path / "run", small(), [0.25, 0.5])
    assert invoke("run", "--resume", str(run.path), "--tensorboard").code == 0
    assert len(list((run.path / "tensorboard").iterdir())) == 1
