"""What a user calls, end to end on the digits, small enough to run in seconds."""

import dataclasses
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedmef
from fedmef.data import load_dataset
from fedmef.device.backend import backend_for
from fedmef.device.choice import missing_kernels
from fedmef.errors import FedmefError, Interrupted, UserError
from fedmef.experiment.settings import Experiment
from fedmef.federation.api import evaluate_run, new_directory
from fedmef.federation.evaluation import evaluate
from fedmef.federation.simulated.fleet import Fleet
from fedmef.runs.directory import Run
from fedmef.wire.broadcast import NETWORK
from fedmef.wire.container import MESSAGE_VERSION, decode
from tests.federation.small import FIVE_ADJUSTMENTS, SMALL, TINY, digest, interrupted_after, steady

OWN = "tests.federation.own_parts"


@pytest.fixture(scope="module")
def inline_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fedmef.run(Experiment(**FIVE_ADJUSTMENTS), tmp_path_factory.mktemp("runs") / "inline")


def cut_run(path: Path, settings: dict[str, Any], rounds: int = 3) -> Path:
    """A run that was interrupted when so many rounds were done."""
    with pytest.raises(Interrupted, match="--resume"):
        fedmef.run(Experiment(**settings), path, callbacks=[interrupted_after(rounds)])
    return path


def test_another_seed_gives_another_model(inline_run: Run, tmp_path: Path) -> None:
    other = fedmef.run(Experiment(**FIVE_ADJUSTMENTS, seed=1), tmp_path / "run")
    assert digest(other.path) != digest(inline_run.path)


def test_an_interrupted_run_resumes_to_the_same_bits(inline_run: Run, tmp_path: Path) -> None:
    cut = cut_run(tmp_path / "run", FIVE_ADJUSTMENTS)
    resumed = fedmef.resume(cut, {"engine": "processes", "workers": 2})
    assert digest(resumed.path) == digest(inline_run.path)
    assert steady(resumed) == steady(inline_run)


@pytest.mark.parametrize("method", ["prunefl", "feddst", "zerofl", "fedtiny", "fedavg"])
def test_every_kind_of_method_resumes_to_the_same_bits(tmp_path: Path, method: str) -> None:
    """The weights of prunefl move from layer to layer."""
    settings = {**SMALL, "method": method, "rounds": 5, "adjust_every": 2, "adjust_until": 9}
    settings |= {"learning_rate": 0.2}
    whole = fedmef.run(Experiment(**settings), tmp_path / "whole")
    assert digest(fedmef.resume(cut_run(tmp_path / "cut", settings)).path) == digest(whole.path)


@pytest.mark.parametrize("model", ["opaque_network", "Branching", "doubling_network"])
def test_a_network_that_is_not_data_resumes_to_the_same_bits(tmp_path: Path, model: str) -> None:
    method = "fedmef" if model == "opaque_network" else "fedavg"
    settings = {**TINY, "width": None, "rounds": 4, "method": method, "model": f"{OWN}:{model}"}
    whole = fedmef.run(Experiment(**settings), tmp_path / "whole")
    assert whole.network.opaque is not None
    cut = cut_run(tmp_path / "cut", settings, rounds=2)
    resumed = fedmef.resume(cut, {"engine": "processes", "workers": 1}, allow_code=True)
    assert digest(resumed.path) == digest(whole.path)
    assert steady(resumed) == steady(whole)


def test_resuming_needs_no_code_of_a_network_that_is_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that builds it may be gone: a run's directory is all that is needed."""
    settings = {**TINY, "width": None, "rounds": 4, "model": f"{OWN}:own_network"}
    whole = fedmef.run(Experiment(**settings), tmp_path / "whole")
    assert whole.network.opaque is None
    cut = cut_run(tmp_path / "cut", settings, rounds=2)
    config = cut / "config.toml"
    config.write_text(config.read_text().replace(f"{OWN}:own_network", "a_module_that_is_gone:network"))

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a network was built")

    for place in ("build_model", "prepared_module", "initial_model"):
        monkeypatch.setattr(f"fedmef.models.initial.{place}", refuse)
    resumed = fedmef.resume(cut)
    assert digest(resumed.path) == digest(whole.path)
    assert evaluate_run(resumed).accuracy == whole.summary.test_accuracy
    assert isinstance(fedmef.load(cut), torch.nn.Module)
    assert fedmef.resume(cut, {"rounds": 5}).summary.rounds == 5


def test_a_network_that_is_not_data_cannot_do_without_its_code(tmp_path: Path) -> None:
    settings = {**TINY, "width": None, "rounds": 3, "model": f"{OWN}:opaque_network"}
    cut = cut_run(tmp_path / "cut", settings, rounds=2)
    config = cut / "config.toml"
    config.write_text(config.read_text().replace(f"{OWN}:", "a_module_that_is_gone:"))
    with pytest.raises(UserError, match="there is no module 'a_module_that_is_gone'"):
        fedmef.resume(cut, allow_code=True)


def test_a_run_that_has_no_round_yet_starts_with_the_network_that_its_code_gives_now(tmp_path: Path) -> None:
    run = fedmef.run(Experiment(**TINY), tmp_path / "run")
    before = digest(run.path)
    for name in ("summary.json", "model.safetensors", "metrics.jsonl"):
        (run.path / name).unlink()
    damages: list[Callable[[Path], object]] = [Path.unlink, lambda file: file.write_text("{}")]
    for damage in damages:
        damage(run.path / "network.json")
        again = fedmef.resume(run.path)
        assert digest(again.path) == before
        assert again.model().network == run.network
        (run.path / "summary.json").unlink()


def test_a_run_is_recorded_with_the_name_of_the_data_that_it_got(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mine = dataclasses.replace(load_dataset("digits"), name="mine")
    settings = {**SMALL, "rounds": 3}
    whole = fedmef.run(Experiment(**settings), dataset=mine)
    assert whole.path.name.endswith("-mine")
    assert Run.open(whole.path).experiment == Experiment(**settings, dataset="mine")
    with pytest.raises(UserError, match=r"unknown dataset 'mine': .* got its data from Python"):
        evaluate_run(whole)

    with pytest.raises(Interrupted):
        fedmef.run(Experiment(**settings), "cut", dataset=mine, callbacks=[interrupted_after(1)])
    with pytest.raises(UserError, match=r"unknown dataset 'mine': .* give dataset=... to fedmef.resume"):
        fedmef.resume("cut")
    assert digest(fedmef.resume("cut", dataset=mine).path) == digest(whole.path)


def test_data_of_the_users_own_function_keep_its_name(tmp_path: Path) -> None:
    experiment = Experiment(**{**SMALL, "rounds": 1, "dataset": "mine:images"})
    run = fedmef.run(experiment, tmp_path / "run", dataset=load_dataset("digits"))
    assert Run.open(run.path).experiment.dataset == "mine:images"


def test_a_run_is_not_resumed_with_data_of_another_shape(tmp_path: Path) -> None:
    cut = cut_run(tmp_path / "run", {**TINY, "rounds": 3}, rounds=1)
    with pytest.raises(UserError, match=r"images of shape \[1, 8, 8\] and 10 classes, but .* \[3, 8, 8\]"):
        fedmef.resume(cut, dataset=load_dataset("digits"))
    digits = load_dataset("digits")
    more = dataclasses.replace(digits, classes=12)
    run = fedmef.run(Experiment(**{**SMALL, "rounds": 1}), tmp_path / "digits")
    with pytest.raises(UserError, match="12 classes"):
        fedmef.resume(run.path, {"rounds": 2}, dataset=more)


def test_a_finished_runs_model_can_be_loaded_and_predicts(inline_run: Run) -> None:
    model = fedmef.load(inline_run.path)
    test = load_dataset("digits").test
    assert not model.training
    with torch.no_grad():
        logits = model(torch.from_numpy(test.images))
    accuracy = float((logits.argmax(1).numpy() == test.labels).mean())
    assert accuracy == inline_run.summary.test_accuracy


def test_a_loaded_model_takes_images_that_are_normalised_already(inline_run: Run) -> None:
    model = fedmef.load(inline_run.path)
    images = load_dataset("digits").test.images[:20]
    normalised = torch.from_numpy(inline_run.network.input.normalize(images))
    with torch.no_grad():
        torch.testing.assert_close(model(normalised), model(torch.from_numpy(images)))


def test_a_network_that_is_not_data_can_be_loaded_and_evaluated_with_its_code(tmp_path: Path) -> None:
    settings = {**TINY, "width": None, "model": f"{OWN}:opaque_network"}
    run = fedmef.run(Experiment(**settings), tmp_path / "run")
    model = fedmef.load(run.path, allow_code=True)
    assert any(isinstance(module, torch.nn.Dropout) for module in model.modules())
    state = model.state_dict()
    assert all(np.array_equal(state[name].numpy(), array) for name, array in run.model().state.items())
    assert evaluate_run(run, allow_code=True).accuracy == run.summary.test_accuracy


def test_a_finished_run_is_not_run_again(inline_run: Run) -> None:
    before = digest(inline_run.path)
    assert fedmef.resume(inline_run.path).summary == inline_run.summary
    assert digest(inline_run.path) == before


def test_more_rounds_continue_a_finished_run_as_if_it_had_never_ended(tmp_path: Path) -> None:
    settings = {**TINY, "adjust_until": 2}
    fedmef.run(Experiment(**{**settings, "rounds": 3}), tmp_path / "run")
    longer = fedmef.resume(tmp_path / "run", {"rounds": 5})
    whole = fedmef.run(Experiment(**{**settings, "rounds": 5}), tmp_path / "whole")
    assert digest(longer.path) == digest(whole.path)
    assert Run.open(longer.path).experiment.rounds == 5
    with pytest.raises(UserError, match=r"rounds = 4: .* has done 5 rounds already"):
        fedmef.resume(longer.path, {"rounds": 4})


def test_resuming_cannot_change_the_experiment(inline_run: Run) -> None:
    with pytest.raises(UserError, match=r"sparsity = 0\.9 there, 0\.5 here.*rounds, workers may change"):
        fedmef.resume(inline_run.path, {"sparsity": 0.5})


def test_evaluating_a_run_gives_the_accuracy_that_it_logged(inline_run: Run) -> None:
    score = evaluate_run(Run.open(inline_run.path))
    assert score.accuracy == inline_run.summary.test_accuracy
    assert score.loss == inline_run.summary.test_loss


def test_a_model_can_be_scored_on_any_split(inline_run: Run) -> None:
    model = inline_run.model()
    backend = backend_for(inline_run.experiment, model.network)
    train = load_dataset("digits").train
    assert 0 < evaluate(backend, model.state, train).accuracy < 1


def test_a_model_that_does_not_fit_its_network_is_refused(inline_run: Run, tmp_path: Path) -> None:
    other = fedmef.run(Experiment(**{**SMALL, "width": 16, "rounds": 1}), tmp_path / "run")
    shutil.copy(inline_run.path / "model.safetensors", other.path)
    with pytest.raises(UserError, match="do not fit its network"):
        evaluate_run(other)
    with pytest.raises(UserError, match="do not fit its network"):
        fedmef.load(other.path)


def test_fedavg_trains_the_dense_network(tmp_path: Path) -> None:
    run = fedmef.run(Experiment(**SMALL, method="fedavg", rounds=4, learning_rate=0.1), tmp_path / "run")
    assert run.summary.parameters == run.summary.parameters_if_dense
    losses = [record.train_loss or 0 for record in run.rounds]
    assert losses[-1] < losses[0]
    assert not any(name.endswith(".mask") for name in run.model().state)


def test_every_knob_of_fedmef_trains(tmp_path: Path) -> None:
    experiment = Experiment(
        **SMALL,
        rounds=3,
        adjust_every=1,
        adjust_until=5,
        distribution="erk",
        cache_dtype="bf16",
        affine=True,
        grow_init="step",
        augment=True,
        partition="iid",
        gamma=1.2,
        scaling="paper",
    )
    assert fedmef.run(experiment, tmp_path / "run").summary.adjustments == 2


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


def run_script_without_guard(folder: Path, backend: str) -> subprocess.CompletedProcess[str]:
    settings = f"width=8, rounds=1, engine='processes', workers=2, backend={backend!r}"
    (folder / "script.py").write_text(f"import fedmef\nfedmef.run(fedmef.Experiment({settings}), 'run')\n")
    return subprocess.run(
        [sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, check=False
    )


def test_a_script_without_the_main_guard_is_told_so_and_leaves_nothing(tmp_path: Path) -> None:
    ended = run_script_without_guard(tmp_path, "torch")
    assert "needs 'if __name__ == \"__main__\":' around it" in ended.stderr.splitlines()[-1]
    assert [file.name for file in tmp_path.iterdir()] == ["script.py"]


@pytest.mark.skipif(bool(missing_kernels()), reason="the native kernels are not built")
def test_a_script_without_the_main_guard_runs_on_native_whose_workers_do_not_import_it(
    tmp_path: Path,
) -> None:
    ended = run_script_without_guard(tmp_path, "native")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert Run.open(tmp_path / "run").finished


def test_a_run_whose_devices_lost_everything_sends_it_again(inline_run: Run, tmp_path: Path) -> None:
    cut = cut_run(tmp_path / "run", FIVE_ADJUSTMENTS)
    shutil.rmtree(cut / "held")
    resumed = fedmef.resume(cut)
    assert digest(resumed.path) == digest(inline_run.path)
    first = resumed.rounds[3]
    assert first.bytes_down > inline_run.rounds[3].bytes_down
    assert first.bytes_down == sum(report.bytes_down for report in first.device_reports)  # not sent in vain
    assert all(record.lost == [] for record in resumed.rounds)


def bytes_down(path: Path, **settings: Any) -> list[int]:
    run = fedmef.run(
        Experiment(**{**FIVE_ADJUSTMENTS, "devices_per_round": 6, "rounds": 4, **settings}), path
    )
    assert not (path / "held").exists()
    return [record.bytes_down for record in run.rounds]


def test_masks_are_sent_once_and_then_only_what_has_changed(tmp_path: Path) -> None:
    remembered = bytes_down(tmp_path / "remembered")
    every_time = bytes_down(tmp_path / "every_time", remember_masks=False)
    assert abs(remembered[0] - every_time[0]) <= 6  # the job says `false` instead of `true`
    assert all(less < more for less, more in zip(remembered[1:], every_time[1:], strict=True))
    assert digest(tmp_path / "remembered") == digest(tmp_path / "every_time")


def test_the_network_is_sent_once_to_each_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brought: list[tuple[int, bool]] = []
    train = Fleet.train

    def spy(self: Fleet, device: int, message: bytes) -> bytes:
        brought.append((device, NETWORK in decode(message, MESSAGE_VERSION)[0]))
        return train(self, device, message)

    monkeypatch.setattr(Fleet, "train", spy)
    fedmef.run(Experiment(**FIVE_ADJUSTMENTS), tmp_path / "run")
    assert len(brought) == 21
    seen: set[int] = set()
    for device, with_network in brought:
        assert with_network == (device not in seen)
        seen.add(device)


@pytest.mark.parametrize("method", ["feddst", "prunefl", "fedavg", "zerofl"])
def test_every_kind_of_method_ends_in_the_same_bits_however_it_is_sent(method: str, tmp_path: Path) -> None:
    settings = {"method": method, "rounds": 3, "devices_per_round": 3, "learning_rate": 0.2}
    bytes_down(tmp_path / "auto", **settings)
    bytes_down(tmp_path / "plain", **settings, remember_masks=False, wire_scheme="dense")
    assert digest(tmp_path / "auto") == digest(tmp_path / "plain")


def test_half_values_halve_the_traffic_and_train(inline_run: Run, tmp_path: Path) -> None:
    exact = inline_run.summary
    half = fedmef.run(Experiment(**FIVE_ADJUSTMENTS, wire_dtype="bf16"), tmp_path / "bf16").summary
    assert half.bytes_down < 0.7 * exact.bytes_down
    assert half.bytes_up < 0.8 * exact.bytes_up
    assert half.test_loss == pytest.approx(exact.test_loss, rel=0.2)


def test_a_new_directory_is_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = []
    for _ in range(3):
        made.append(new_directory(Experiment(method=f"{OWN}:Lazy")))
        made[-1].mkdir(parents=True)
    assert len(set(made)) == 3
    assert all(path.parent == Path("runs") and ":" not in path.name for path in made)


def test_without_a_directory_a_run_goes_to_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = fedmef.run(Experiment(**TINY))
    assert run.path.parent == Path("runs")
    assert Run.open(run.path).finished


def test_a_run_is_replaced_only_when_asked(tmp_path: Path) -> None:
    fedmef.run(Experiment(**TINY), tmp_path / "run")
    with pytest.raises(UserError, match="holds a run already"):
        fedmef.run(Experiment(**TINY, seed=1), tmp_path / "run")
    replaced = fedmef.run(Experiment(**TINY, seed=1), tmp_path / "run", overwrite=True)
    assert digest(replaced.path) == digest(fedmef.run(Experiment(**TINY, seed=1), tmp_path / "other").path)


def test_a_device_that_does_not_fit_its_limit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    told: list[str] = []
    with pytest.raises(UserError, match=r"device_memory = .*(settings that fit|native kernels)"):
        fedmef.run(Experiment(**{**TINY, "device_memory": 1000}), tmp_path / "run", tell=told.append)
    assert told == ["opening the data and building the network", "measuring what a device needs"]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("error", [MemoryError("no room"), RuntimeError("can't allocate memory")])
def test_a_network_beyond_this_machine_is_a_failure_that_says_so(
    inline_run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("fedmef.federation.api.evaluate", fail)
    with pytest.raises(FedmefError, match="its network cannot be executed here"):
        evaluate_run(inline_run)


def test_a_network_that_cannot_be_built_is_a_mistake_that_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"width = {10**12}: it cannot be built"):
        fedmef.run(Experiment(**{**TINY, "width": 10**12}), tmp_path / "run")
