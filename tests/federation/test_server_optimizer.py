"""Server momentum and FedAdam: what they compute, and that a resumed run has the same bits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedmef
from fedmef.errors import Interrupted, UserError
from fedmef.experiment.settings import Experiment
from fedmef.federation.preparation import prepare
from fedmef.federation.server_optimizer import TAU, ServerOptimizer
from fedmef.sparsity.model import Model
from tests.federation.small import TINY, digest, interrupted_after, steady

KINDS = ["momentum", "adam"]
# Adjustments in every round, so that moments follow their positions.
SETTINGS: dict[str, Any] = {**TINY, "rounds": 4, "server_momentum": 0.8}


def a_model() -> Model:
    return prepare(Experiment(**TINY)).model


def moved(model: Model, amount: float) -> dict[str, Any]:
    """The model as an average that is this far away; what it was before."""
    before = dict(model.state)
    for name in model.network.floats:
        model.state[name] = before[name] + np.float32(amount)
    return before


def test_momentum_goes_on_in_the_direction_of_earlier_rounds() -> None:
    model = a_model()
    optimizer = ServerOptimizer(Experiment(**TINY, server_optimizer="momentum", server_momentum=0.5), model)
    name = next(name for name in model.network.floats if name.endswith(".values"))
    start = model.state[name].copy()
    for expected in (0.1, 0.1 + 0.15):
        optimizer.step(model, moved(model, 0.1))
        assert np.allclose(model.state[name] - start, expected, atol=1e-6)


def test_adam_steps_by_about_its_rate() -> None:
    model = a_model()
    optimizer = ServerOptimizer(Experiment(**TINY, server_optimizer="adam", server_rate=0.02), model)
    name = next(name for name in model.network.floats if name.endswith(".values"))
    start = model.state[name].copy()
    optimizer.step(model, moved(model, 0.5))
    expected = 0.02 * 0.1 * 0.5 / (np.sqrt(0.01 * 0.25) + TAU)
    assert np.allclose(model.state[name] - start, expected, atol=1e-6)


def test_without_one_the_average_is_the_model() -> None:
    model = a_model()
    optimizer = ServerOptimizer(Experiment(**TINY), model)
    moved(model, 0.1)
    average = dict(model.state)
    optimizer.step(model, average)
    assert all(model.state[name] is average[name] for name in average)
    assert (optimizer.used, optimizer.state()) == (False, {})


def test_statistics_are_averaged_and_never_stepped() -> None:
    model = prepare(Experiment(**{**TINY, "method": "fedtiny"})).model
    optimizer = ServerOptimizer(Experiment(**TINY, server_optimizer="momentum", server_rate=0.5), model)
    name = next(name for name in model.network.floats if name.endswith("running_var"))
    before = moved(model, 0.1)
    optimizer.step(model, before)
    assert np.array_equal(model.state[name], before[name] + np.float32(0.1))


def test_a_moment_stays_with_its_position() -> None:
    model = a_model()
    optimizer = ServerOptimizer(Experiment(**TINY, server_optimizer="momentum"), model)
    layer = next(iter(model.network.sparse_layers))
    positions, masks, key = model.positions(layer), model.masks(), f"first/{layer}.values"
    state = optimizer.state() | {key: positions.astype(np.float32) + 1}
    optimizer.restore(state)
    pruned = np.setdiff1d(np.arange(model.network.sparse_layers[layer].size), positions)[:2]
    after = np.sort(np.concatenate([positions[2:], pruned]))
    model.assign(layer, after, np.zeros(after.size, dtype=np.float32))
    optimizer.follow(model, masks)
    assert np.array_equal(optimizer.state()[key], np.where(np.isin(after, pruned), 0, after + 1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["fedmef", "prunefl", "feddst", "zerofl"])
def test_a_resumed_run_has_the_same_bits(tmp_path: Path, kind: str, method: str) -> None:
    settings = {**SETTINGS, "server_optimizer": kind, "method": method}
    whole = fedmef.run(Experiment(**settings), tmp_path / "whole")
    with pytest.raises(Interrupted):
        fedmef.run(Experiment(**settings), tmp_path / "cut", callbacks=[interrupted_after(2)])
    resumed = fedmef.resume(tmp_path / "cut")
    assert digest(resumed.path) == digest(whole.path)
    assert steady(resumed) == steady(whole)
    plain = fedmef.run(Experiment(**{**settings, "server_optimizer": "none"}), tmp_path / "plain")
    assert digest(plain.path) != digest(whole.path)


@pytest.mark.parametrize("engine", ["processes", pytest.param("flower", marks=pytest.mark.slow)])
def test_every_engine_gives_the_same_bits(tmp_path: Path, engine: str) -> None:
    if engine == "flower":
        pytest.importorskip("flwr")
    settings = {**SETTINGS, "server_optimizer": "adam"}
    whole = fedmef.run(Experiment(**settings), tmp_path / "whole")
    with pytest.raises(Interrupted):
        fedmef.run(Experiment(**settings), tmp_path / "cut", callbacks=[interrupted_after(2)])
    resumed = fedmef.resume(tmp_path / "cut", {"engine": engine, "workers": 1})
    assert digest(resumed.path) == digest(whole.path)


def test_more_rounds_go_on_with_the_servers_state(tmp_path: Path) -> None:
    settings = {**SETTINGS, "server_optimizer": "momentum"}
    whole = fedmef.run(Experiment(**settings), tmp_path / "whole")
    fedmef.run(Experiment(**{**settings, "rounds": 2}), tmp_path / "half")
    assert digest(fedmef.resume(tmp_path / "half", {"rounds": 4}).path) == digest(whole.path)
    (tmp_path / "half" / "server.safetensors").unlink()
    with pytest.raises(UserError, match="the state of its server_optimizer is missing"):
        fedmef.resume(tmp_path / "half", {"rounds": 5})


@pytest.mark.parametrize("wrong", [np.zeros(3, np.float32), np.zeros(3, np.float64), None])
def test_a_state_that_does_not_fit_is_refused(wrong: Any) -> None:
    model = a_model()
    optimizer = ServerOptimizer(Experiment(**TINY, server_optimizer="momentum"), model)
    state = optimizer.state()
    key = min(state)
    if wrong is None:
        del state[key]
    else:
        state[key] = wrong
    with pytest.raises(UserError, match="the run is damaged: its server's"):
        optimizer.restore(state)
