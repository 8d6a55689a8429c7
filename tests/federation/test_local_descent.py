"""Momentum, weight decay and FedProx's proximal term: on both backends, and through a whole run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedmef
from fedmef.device.backend import PLAIN, Descent, open_backend
from fedmef.device.choice import choose_for, missing_kernels
from fedmef.errors import Interrupted, UserError
from fedmef.experiment.settings import Experiment
from fedmef.federation.preparation import prepare
from fedmef.methods.extrusion import Pull
from fedmef.nn.backend import TorchBackend
from fedmef.sparsity.model import State
from tests.federation.small import TINY, digest, interrupted_after

needs_kernels = pytest.mark.skipif(bool(missing_kernels()), reason="no native kernels")
SETTINGS: dict[str, Any] = {**TINY, "rounds": 3, "local_epochs": 2, "batch_size": 8}
RULES = [
    Descent(momentum=0.9),
    Descent(weight_decay=0.1),
    Descent(proximal=0.5),
    Descent(momentum=0.5, weight_decay=0.01),
    Descent(proximal=0.5, weight_decay=0.01),
]


@pytest.fixture(scope="module")
def steps() -> Callable[..., State]:
    """The weights after four steps."""
    prepared = prepare(Experiment(**TINY, method="fedtiny"))
    train = prepared.dataset.train

    def train_by(name: Any, descent: Descent, *, pulled: bool = False, parts: int = 1) -> State:
        backend = open_backend(prepared.model.network, name)
        state: State = prepared.model.state
        layer = next(iter(prepared.model.network.sparse_layers))
        pull = Pull({layer: np.arange(5)}, 0.2) if pulled else None
        for _ in range(parts):
            backend.load(state)
            for number in range(4):
                batch = slice(16 * number, 16 * (number + 1))
                backend.step(train.images[batch], train.labels[batch], 0.1, pull, descent)
            state = {name: array.copy() for name, array in backend.state().items()}
        return state

    return train_by


@pytest.mark.parametrize("descent", RULES, ids=str)
@pytest.mark.parametrize("pulled", [False, True])
@needs_kernels
def test_both_backends_agree(steps: Callable[..., State], descent: Descent, pulled: bool) -> None:
    reference, native = (steps(name, descent, pulled=pulled) for name in ("torch", "native"))
    plain = steps("torch", PLAIN, pulled=pulled)
    for name, array in reference.items():
        assert np.allclose(native[name], array, atol=2e-5), name
    assert any(not np.allclose(plain[name], array, atol=1e-3) for name, array in reference.items())


def test_momentum_and_weight_decay_are_those_of_pytorch(steps: Callable[..., State]) -> None:
    prepared = prepare(Experiment(**TINY, method="fedtiny"))
    train, backend = prepared.dataset.train, TorchBackend(prepared.model.network)
    backend.load(prepared.model.state)
    optimizer = torch.optim.SGD(backend.module.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    backend.module.train()
    for number in range(4):
        batch = slice(16 * number, 16 * (number + 1))
        logits = backend.module(backend.normalized(train.images[batch]))
        torch.nn.functional.cross_entropy(logits, torch.from_numpy(train.labels[batch])).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    for name, array in steps("torch", Descent(momentum=0.9, weight_decay=0.01)).items():
        assert np.allclose(backend.state()[name], array, atol=1e-5), name


@pytest.mark.parametrize("backend", ["torch", pytest.param("native", marks=needs_kernels)])
def test_a_strong_proximal_term_keeps_weights_where_they_were(
    steps: Callable[..., State], backend: str
) -> None:
    start = prepare(Experiment(**TINY, method="fedtiny")).model

    def distance(state: State) -> float:
        weights = [name for name, spec in start.network.arrays.items() if spec.role == "weight"]
        return sum(float(np.square(state[name] - start.state[name]).sum()) for name in weights)

    assert distance(steps(backend, Descent(proximal=5.0))) < 0.7 * distance(steps(backend, PLAIN))


@pytest.mark.parametrize("backend", ["torch", pytest.param("native", marks=needs_kernels)])
@pytest.mark.parametrize("extra", [{"proximal": 0.1}, {"momentum": 0.9, "weight_decay": 1e-3}], ids=str)
def test_runs_give_the_same_bits_in_every_engine_and_resumed(
    tmp_path: Path, backend: str, extra: dict[str, float]
) -> None:
    settings = {**SETTINGS, **extra, "backend": backend}
    whole = fedmef.run(Experiment(**settings), tmp_path / "whole")
    with pytest.raises(Interrupted):
        fedmef.run(Experiment(**settings), tmp_path / "cut", callbacks=[interrupted_after(1)])
    resumed = fedmef.resume(tmp_path / "cut", {"engine": "processes", "workers": 1})
    assert digest(resumed.path) == digest(whole.path)
    plain = fedmef.run(Experiment(**{**SETTINGS, "backend": backend}), tmp_path / "plain")
    assert digest(plain.path) != digest(whole.path)


@needs_kernels
def test_auto_takes_torch_where_the_kernels_cannot_and_says_why() -> None:
    network = prepare(Experiment(**TINY)).model.network
    assert choose_for(Experiment(**TINY, proximal=0.1), network).name == "native"
    both = Experiment(**TINY, proximal=0.1, momentum=0.5)
    choice = choose_for(both, network)
    assert (choice.name, choice.reason) == ("torch", "momentum together with proximal needs torch")
    with pytest.raises(UserError, match="backend = 'native': momentum together with proximal needs torch"):
        choose_for(both.model_copy(update={"backend": "native"}), network)


def test_a_cosine_run_is_not_lengthened(tmp_path: Path) -> None:
    fedmef.run(Experiment(**TINY, rate_schedule="cosine"), tmp_path / "run")
    with pytest.raises(UserError, match="with rate_schedule = 'cosine' the last round decides"):
        fedmef.resume(tmp_path / "run", {"rounds": 3})
