"""End to end on the digits, small enough to run in seconds."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedmef
from fedmef.data import load_dataset
from fedmef.errors import FedmefError, Interrupted, UserError
from fedmef.experiment.settings import Experiment
from fedmef.federation.api import evaluate_run
from fedmef.federation.collection import choose_devices
from fedmef.federation.evaluation import evaluate
from fedmef.methods import Method, Plan
from fedmef.methods.base import Extras
from fedmef.runs.directory import Record, Run

SMALL: dict[str, Any] = {
    "width": 8,
    "devices": 6,
    "devices_per_round": 3,
    "local_epochs": 1,
    "batch_size": 64,
    "engine": "inline",
}
FIVE_ADJUSTMENTS: dict[str, Any] = {**SMALL, "rounds": 7, "adjust_every": 1, "adjust_until": 6}


def digest(run: Run) -> str:
    return hashlib.sha256((run.path / "model.safetensors").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def inline_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fedmef.run(Experiment(**FIVE_ADJUSTMENTS), tmp_path_factory.mktemp("runs") / "inline")


def test_a_round_logs_everything(inline_run: Run) -> None:
    first, second, *_, last = inline_run.metrics
    assert [record["round"] for record in inline_run.metrics] == list(range(7))
    assert first["adjusted"] is False
    assert first["accuracy_before_adjustment"] is None
    assert second["adjusted"] is True
    assert 0 <= second["accuracy_before_adjustment"] <= 1
    assert second["accuracy_after_adjustment"] == second["test_accuracy"]
    assert second["exchanged_weights"] > 0
    assert second["dropped_magnitude"] >= 0
    assert second["bytes_up"] > first["bytes_up"]  # the gradients
    assert last["train_loss"] < first["train_loss"]
    assert all(record["seconds"] > 0 and record["bytes_down"] > 0 for record in inline_run.metrics)


def test_active_weights_stay_the_same_through_five_adjustments(inline_run: Run) -> None:
    assert sum(record["adjusted"] for record in inline_run.metrics) == 5
    assert len({record["active_weights"] for record in inline_run.metrics}) == 1


def test_active_weights_per_layer_stay_the_same_in_every_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, int]] = []
    write = Run.write_checkpoint

    def spy(self: Run, state: dict[str, torch.Tensor], next_round: int, ledger: object) -> None:
        masks = {name: value for name, value in state.items() if name.endswith(".mask")}
        seen.append({name: sum(int(byte).bit_count() for byte in mask) for name, mask in masks.items()})
        assert all(state[name.replace("mask", "values")].numel() == count for name, count in seen[-1].items())
        write(self, state, next_round)

    monkeypatch.setattr(Run, "write_checkpoint", spy)
    fedmef.run(Experiment(**FIVE_ADJUSTMENTS), tmp_path / "run")
    assert len(seen) == 7
    assert len(seen[0]) == 3
    assert all(counts == seen[0] for counts in seen)


@pytest.mark.parametrize("workers", [1, 2])
def test_processes_end_in_the_same_bits_as_inline(inline_run: Run, tmp_path: Path, workers: int) -> None:
    experiment = Experiment(**{**FIVE_ADJUSTMENTS, "engine": "processes", "workers": workers})
    assert digest(fedmef.run(experiment, tmp_path / "run")) == digest(inline_run)


def test_another_seed_gives_another_model(inline_run: Run, tmp_path: Path) -> None:
    other = fedmef.run(Experiment(**FIVE_ADJUSTMENTS, seed=1), tmp_path / "run")
    assert digest(other) != digest(inline_run)


def test_an_interrupted_run_resumes_to_the_same_bits(inline_run: Run, tmp_path: Path) -> None:
    def interrupt(record: Record) -> None:
        if record["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="--resume"):
        fedmef.run(Experiment(**FIVE_ADJUSTMENTS), tmp_path / "run", watch=interrupt)
    resumed = fedmef.resume(tmp_path / "run", {"engine": "processes", "workers": 2})
    assert digest(resumed) == digest(inline_run)
    steady = {"seconds", "device_reports"}
    assert [{k: v for k, v in record.items() if k not in steady} for record in resumed.metrics] == [
        {k: v for k, v in record.items() if k not in steady} for record in inline_run.metrics
    ]


def test_prunefl_resumes_although_its_weights_moved(tmp_path: Path) -> None:
    settings = {
        **SMALL,
        "method": "prunefl",
        "rounds": 5,
        "adjust_every": 2,
        "adjust_until": 9,
        "learning_rate": 0.2,
    }

    def interrupt(record: Record) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    whole = fedmef.run(Experiment(**settings), tmp_path / "whole")
    with pytest.raises(Interrupted):
        fedmef.run(Experiment(**settings), tmp_path / "cut", watch=interrupt)
    assert digest(fedmef.resume(tmp_path / "cut")) == digest(whole)


def test_a_finished_runs_model_can_be_loaded_and_predicts(inline_run: Run) -> None:
    model = fedmef.load(inline_run.path)
    dataset = load_dataset("digits")
    assert not model.training
    assert evaluate(model, dataset.test, dataset.statistics()).accuracy == inline_run.summary["test_accuracy"]


def test_a_finished_run_is_not_run_again(inline_run: Run) -> None:
    before = digest(inline_run)
    assert fedmef.resume(inline_run.path).summary == inline_run.summary
    assert digest(inline_run) == before


def test_resuming_cannot_change_the_experiment(inline_run: Run) -> None:
    with pytest.raises(UserError, match=r"sparsity = 0\.9 there, 0\.5 here.*rounds, workers may change"):
        fedmef.resume(inline_run.path, {"sparsity": 0.5})


def test_evaluating_a_run_gives_the_accuracy_that_it_logged(inline_run: Run) -> None:
    score = evaluate_run(Run.open(inline_run.path))
    assert score.accuracy == inline_run.summary["test_accuracy"]
    assert score.loss == pytest.approx(inline_run.summary["test_loss"])


def test_a_model_that_does_not_fit_its_configuration_is_refused(inline_run: Run, tmp_path: Path) -> None:
    other = Run.create(tmp_path / "run", Experiment(**{**FIVE_ADJUSTMENTS, "width": 16}))
    other.finish(inline_run.model_state(), {})
    with pytest.raises(UserError, match="do not fit its configuration"):
        evaluate_run(other)


def test_fedavg_trains_the_dense_network(tmp_path: Path) -> None:
    run = fedmef.run(Experiment(**SMALL, method="fedavg", rounds=4, learning_rate=0.1), tmp_path / "run")
    assert run.summary["parameters"] == run.summary["parameters_if_dense"]
    assert run.metrics[-1]["train_loss"] < run.metrics[0]["train_loss"]
    assert not any(name.endswith(".mask") for name in run.model_state())


def test_accuracy_is_measured_when_it_is_due_and_at_the_end(tmp_path: Path) -> None:
    run = fedmef.run(Experiment(**SMALL, rounds=4, evaluate_every=3, adjust_until=0), tmp_path / "run")
    measured = [record["test_accuracy"] is not None for record in run.metrics]
    assert measured == [False, False, True, True]


def test_the_same_devices_train_whatever_happened_before() -> None:
    experiment = Experiment(devices=100, devices_per_round=10)
    chosen = [choose_devices(experiment, round_number) for round_number in range(50)]
    assert chosen[7] == choose_devices(experiment, 7)
    assert all(len(set(devices)) == 10 and devices == sorted(devices) for devices in chosen)
    assert len({device for devices in chosen for device in devices}) > 90


def test_every_knob_of_fedmef_trains(tmp_path: Path) -> None:
    experiment = Experiment(
        **SMALL,
        rounds=3,
        adjust_every=1,
        adjust_until=5,
        distribution="erk",
        cache_dtype="bf16",
        affine=True,
        grow_init="mean",
        augment=True,
        partition="iid",
        gamma=1.2,
        scaling="paper",
    )
    assert fedmef.run(experiment, tmp_path / "run").summary["adjustments"] == 2


def test_a_batch_of_one_sample_never_stops_batchnorm(tmp_path: Path) -> None:
    experiment = Experiment(
        method="fedavg",
        dataset="synthetic",
        synthetic_train=12,
        synthetic_test=10,
        model="resnet18",
        stem="imagenet",  # 32x32 images end as 1x1 maps: one value per channel
        width=4,
        devices=3,
        devices_per_round=3,
        rounds=1,
        local_epochs=1,
        batch_size=1,
        learning_rate=0.01,
        engine="inline",
    )
    fedmef.run(experiment, tmp_path / "run")


def test_diverging_training_is_a_clear_failure(tmp_path: Path) -> None:
    experiment = Experiment(**SMALL, method="fedavg", rounds=2, learning_rate=1e30)
    with pytest.raises(FedmefError, match="diverged; lower learning_rate"):
        fedmef.run(experiment, tmp_path / "run")


class Lazy(Method):
    """A method of a user's own, in five lines."""

    def train(self, local: Any, plan: Plan) -> Extras:
        local.fit(1 if plan.round else 2)
        return Extras()


def own_network(classes: int, channels: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes)
    )


@pytest.mark.parametrize("engine", ["inline", "processes"])
def test_a_method_and_a_network_of_ones_own_run_in_every_engine(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    experiment = Experiment(
        **{**SMALL, "width": None, "engine": engine},
        method="test_api:Lazy",
        model="test_api:own_network",
        rounds=2,
        workers=2,
    )
    assert len(fedmef.run(experiment, tmp_path / "run").metrics) == 2


def failing_network(classes: int, channels: int) -> nn.Module:
    class Failing(nn.Sequential):
        def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
            if self.training:
                raise RuntimeError("out of coffee")
            output: torch.Tensor = super().forward(input)  # type: ignore[no-untyped-call]
            return output

    return Failing(*own_network(classes, channels).children())


def test_a_worker_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    experiment = Experiment(
        **{**SMALL, "width": None, "engine": "processes"},
        method="fedavg",
        model="test_api:failing_network",
    )
    with pytest.raises(FedmefError, match=r"^device \d failed: RuntimeError: out of coffee$"):
        fedmef.run(experiment, tmp_path / "run")


def few_answers(classes: int, channels: int) -> nn.Module:
    return own_network(classes - 1, channels)


def small_input(classes: int, channels: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels + 1, 4, 3), nn.Flatten(), nn.Linear(4, classes))


@pytest.mark.parametrize(
    ("network", "expected"), [("few_answers", "answers"), ("small_input", "cannot take images of shape")]
)
def test_a_network_that_does_not_fit_the_data_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: str, expected: str
) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    experiment = Experiment(**{**SMALL, "width": None}, method="fedavg", model=f"test_api:{network}")
    with pytest.raises(UserError, match=expected):
        fedmef.run(experiment, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_script_without_the_main_guard_is_told_so_and_leaves_nothing(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import fedmef\n"
        "fedmef.run(fedmef.Experiment(width=8, rounds=1, engine='processes', workers=2), 'run')\n"
    )
    ended = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "needs 'if __name__ == \"__main__\":' around it" in ended.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == [script]


def test_a_run_whose_masks_are_gone_sends_them_again(inline_run: Run, tmp_path: Path) -> None:
    def interrupt(record: Record) -> None:
        if record["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        fedmef.run(Experiment(**FIVE_ADJUSTMENTS), tmp_path / "run", watch=interrupt)
    shutil.rmtree(tmp_path / "run" / "masks")
    assert digest(fedmef.resume(tmp_path / "run")) == digest(inline_run)


def bytes_down(path: Path, **settings: Any) -> list[int]:
    run = fedmef.run(
        Experiment(**{**FIVE_ADJUSTMENTS, "devices_per_round": 6, "rounds": 4, **settings}), path
    )
    assert not (path / "masks").exists()
    return [record["bytes_down"] for record in run.metrics]


def test_masks_are_sent_once_and_then_only_what_has_changed(tmp_path: Path) -> None:
    remembered = bytes_down(tmp_path / "remembered")
    every_time = bytes_down(tmp_path / "every_time", remember_masks=False)
    assert remembered[0] == every_time[0]
    assert all(less < more for less, more in zip(remembered[1:], every_time[1:], strict=True))
    assert digest(Run.open(tmp_path / "remembered")) == digest(Run.open(tmp_path / "every_time"))


@pytest.mark.parametrize("method", ["feddst", "prunefl", "fedavg", "zerofl"])
def test_every_kind_of_method_ends_in_the_same_bits_however_it_is_sent(method: str, tmp_path: Path) -> None:
    settings = {"method": method, "rounds": 3, "devices_per_round": 3, "learning_rate": 0.2}
    bytes_down(tmp_path / "auto", **settings)
    bytes_down(tmp_path / "plain", **settings, remember_masks=False, wire_scheme="dense")
    assert digest(Run.open(tmp_path / "auto")) == digest(Run.open(tmp_path / "plain"))


def test_half_values_halve_the_traffic_and_train(inline_run: Run, tmp_path: Path) -> None:
    exact = inline_run.summary
    half = fedmef.run(Experiment(**FIVE_ADJUSTMENTS, wire_dtype="bf16"), tmp_path / "bf16").summary
    assert half["bytes_down"] < 0.7 * exact["bytes_down"]
    assert half["bytes_up"] < 0.8 * exact["bytes_up"]
    assert half["test_loss"] == pytest.approx(exact["test_loss"], rel=0.2)
