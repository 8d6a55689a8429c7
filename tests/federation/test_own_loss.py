"""A loss of the user's own: by name or as a function, in every engine; mistakes show before any training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fedmef
from fedmef.device.backend import open_backend
from fedmef.errors import Interrupted, MessageError, UserError
from fedmef.experiment.settings import Experiment
from fedmef.federation.api import evaluate_run
from fedmef.federation.prediction import predict_files
from fedmef.federation.preparation import prepare
from fedmef.federation.server import Server
from fedmef.federation.simulated.fleet import Fleet
from fedmef.nn.loss import try_loss
from fedmef.runs.directory import Run
from tests.cli.invoking import Invoke, check_mistake, invoke
from tests.federation import own_parts
from tests.federation.small import TINY, digest, interrupted_after

__all__ = ["invoke"]

HERE = "tests.federation.own_parts"
SETTINGS: dict[str, Any] = {**TINY, "rounds": 3}


@pytest.fixture(scope="module")
def smooth(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fedmef.run(out=tmp_path_factory.mktemp("runs") / "run", loss=own_parts.smooth_loss, **SETTINGS)


def test_a_function_and_its_name_are_what_devices_minimise(smooth: Run, tmp_path: Path) -> None:
    assert smooth.experiment.loss == f"{HERE}:smooth_loss"
    assert "a loss of your own needs torch" in smooth.summary.backend_details
    for name, equal in ((f"{HERE}:smooth_loss", True), (f"{HERE}:criterion", True), ("cross_entropy", False)):
        other = fedmef.run(out=tmp_path / name, loss=name, backend="torch", **SETTINGS)
        assert (digest(other.path) == digest(smooth.path)) is equal
        assert (other.rounds[0].train_loss == smooth.rounds[0].train_loss) is equal


def test_cross_entropy_of_ones_own_has_the_bits_of_ours(tmp_path: Path) -> None:
    ours = fedmef.run(out=tmp_path / "ours", backend="torch", **SETTINGS)
    own = fedmef.run(out=tmp_path / "own", loss=own_parts.same_loss, **SETTINGS)
    assert digest(own.path) == digest(ours.path)


def test_gradients_of_pruned_weights_are_those_of_the_loss() -> None:
    prepared = prepare(Experiment(**TINY, method="fedtiny", backend="torch"))
    train, network = prepared.dataset.train, prepared.model.network
    counts = dict.fromkeys(network.sparse_layers, 3)
    found = []
    for loss in ("cross_entropy", f"{HERE}:smooth_loss"):
        backend = open_backend(network, loss=loss)
        backend.load(prepared.model.state)
        found.append(backend.growth(train.images[:16], train.labels[:16], counts))
    assert any((found[0][name].gradients != found[1][name].gradients).any() for name in counts)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["processes", "flower"])
def test_every_engine_gives_the_same_bits(engine: str, tmp_path: Path) -> None:
    torch.manual_seed(7)  # what a loss draws does not depend on it
    settings = {**SETTINGS, "rounds": 2, "loss": f"{HERE}:noisy_loss"}
    inline = fedmef.run(Experiment(**settings), tmp_path / "inline")
    other = fedmef.run(Experiment(**{**settings, "engine": engine, "workers": 2}), tmp_path / engine)
    assert digest(other.path) == digest(inline.path)


def test_a_resumed_run_has_the_bits_of_one_that_was_not_interrupted(smooth: Run, tmp_path: Path) -> None:
    with pytest.raises(Interrupted, match="--allow-code"):
        fedmef.run(
            out=tmp_path / "cut", loss=own_parts.smooth_loss, callbacks=[interrupted_after(1)], **SETTINGS
        )
    with pytest.raises(UserError, match=rf"names code that this would run: loss = '{HERE}:smooth_loss'"):
        fedmef.resume(tmp_path / "cut")
    with pytest.raises(UserError, match=r"loss = .* there, cross_entropy here"):
        fedmef.resume(tmp_path / "cut", {"loss": "cross_entropy"})
    resumed = fedmef.resume(tmp_path / "cut", {"loss": f"{HERE}:smooth_loss"})  # its name is consent
    assert digest(resumed.path) == digest(smooth.path)


def test_a_large_cross_entropy_of_another_loss_is_no_divergence(tmp_path: Path) -> None:
    """Its logits need not be those of probabilities."""
    run = fedmef.run(out=tmp_path / "run", loss=own_parts.sharp_loss, **SETTINGS)
    assert (run.summary.test_loss or 0) > 15 * np.log(10)
    assert "diverged" not in run.summary.problem


def test_what_only_predicts_needs_no_loss(smooth: Run, tmp_path: Path) -> None:
    stranger = smooth.experiment.model_copy(update={"loss": "nowhere:at_all"})
    run = Run(smooth.path, stranger)
    assert evaluate_run(run).accuracy == smooth.summary.test_accuracy
    Image.new("RGB", (8, 8)).save(tmp_path / "black.png")
    assert predict_files(run, [tmp_path / "black.png"]).shape == (1, 10)


def test_a_device_refuses_a_loss_that_it_has_not(tmp_path: Path) -> None:
    prepared = prepare(Experiment(**TINY, loss=f"{HERE}:smooth_loss"))
    server = Server(prepared.experiment, prepared.model)
    plain = prepared.experiment.model_copy(update={"loss": "cross_entropy"})
    fleet = Fleet.build(plain, prepared.dataset, Run.store(tmp_path))
    message = server.broadcast(server.job(0), [0])[0]
    with pytest.raises(MessageError, match=r"device 0 minimises cross_entropy, and not loss = .*smooth_loss"):
        fleet.train_honestly(0, message)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("nonsense", "unknown loss 'nonsense': it is cross_entropy, or module:function of your own"),
        ("nowhere:loss", "there is no module 'nowhere'"),
        (f"{HERE}:missing", "has no 'missing'"),
        (f"{HERE}:no_function", "is int; name a function of"),
        (own_parts.loss_of_each, r"gave a tensor of shape \[2\]: it must give the mean over the batch"),
        (own_parts.infinite_loss, "gave inf .* not finite"),
        (own_parts.number_loss, "gave float: it must give the mean"),
        (own_parts.detached_loss, "gave a tensor without gradient"),
        (own_parts.unrelated_loss, "the logits have no part in"),
        (own_parts.raising_loss, r"raised RuntimeError for logits of shape \[2, 10\]"),
        (torch.nn.CrossEntropyLoss, "raised|gave"),
        (torch.nn.CrossEntropyLoss(), "an object that can be called: by its name, module:name"),
        (lambda logits, labels: logits.sum(), "top level of a module"),
        (3, "give a name, a class or a function"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(loss: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        fedmef.run(out=tmp_path / "run", loss=loss, **TINY)
    assert not (tmp_path / "run").exists()


def test_native_kernels_have_cross_entropy_only(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"backend = 'native' and loss = .* needs torch; use torch or auto"):
        fedmef.run(out=tmp_path / "run", loss=own_parts.smooth_loss, backend="native", **TINY)
    assert not (tmp_path / "run").exists()


def test_the_command_line_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke) -> None:
    monkeypatch.chdir(tmp_path)
    settings = [f"--{name.replace('_', '-')}={value}" for name, value in TINY.items()]
    ended = invoke("run", *settings, "--loss", f"{HERE}:smooth_loss", "--out", "run")
    assert ended.code == 0, ended.errors
    assert "a loss of your own needs torch" in " ".join(ended.printed.split())
    check_mistake(invoke("run", *settings, "--loss", f"{HERE}:loss_of_each"), "mean over the batch")


def test_trying_a_loss_changes_no_random_number() -> None:
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    try_loss(f"{HERE}:noisy_loss", 10)
    assert torch.equal(torch.random.get_rng_state(), before)
