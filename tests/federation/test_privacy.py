"""Client-level differential privacy: what a round releases, and what it costs."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedmef
from fedmef.errors import UserError
from fedmef.experiment.settings import Experiment
from fedmef.federation.collection import choose_devices
from fedmef.federation.preparation import check_names
from fedmef.federation.privacy import absorb_privately, spent_epsilon
from fedmef.methods.base import Extras, Update

PRIVATE: dict[str, Any] = {"method": "fedavg_sap", "noise_multiplier": 1.0, "clip_norm": 2.0}


def test_epsilon_is_that_of_the_plain_gaussian_mechanism_when_every_device_joins() -> None:
    """RDP of one Gaussian release is α / (2 z²): minimise over α by hand."""
    experiment = Experiment(**{**PRIVATE, "noise_multiplier": 4.0}, devices=10, devices_per_round=10)
    by_hand = min(
        alpha / (2 * 16) + math.log(1e5) / (alpha - 1)
        for alpha in (1 + step / 100 for step in range(1, 5000))
    )
    epsilon = spent_epsilon(experiment, 1)
    assert epsilon is not None
    assert 0.7 * by_hand < epsilon <= by_hand * 1.001  # the accountant's conversion is somewhat tighter


def test_epsilon_grows_with_rounds_and_falls_with_noise_and_with_fewer_devices() -> None:
    def spent(rounds: int = 30, **changes: Any) -> float:
        epsilon = spent_epsilon(Experiment(**{**PRIVATE, "devices": 100, **changes}), rounds)
        assert epsilon is not None
        return epsilon

    assert spent(60) > spent(30) > spent(1)
    assert spent(noise_multiplier=2.0) < spent()
    assert spent(devices_per_round=5) < spent()
    assert spent_epsilon(Experiment(), 30) is None


def test_devices_join_by_throws_of_their_own() -> None:
    experiment = Experiment(**PRIVATE, devices=100, devices_per_round=10)
    counts = [len(choose_devices(experiment, number)) for number in range(300)]
    assert sum(counts) / len(counts) == pytest.approx(10, abs=0.6)
    assert 2.4 < torch.tensor(counts).double().std() < 3.6  # of a binomial: 3


def release(updates: list[float], noise_multiplier: float) -> list[float]:
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
    sent = dict(model.state_dict())
    experiment = Experiment(**{**PRIVATE, "noise_multiplier": noise_multiplier}, devices_per_round=4)
    answers = [
        Update(number, 10**number, 0.5, {"weight": torch.tensor([[1.0 + change, 1.0]])}, Extras())
        for number, change in enumerate(updates)
    ]
    absorb_privately(model, answers, sent, experiment, round_number=3)
    weights: list[float] = model.weight.detach().flatten().tolist()
    return weights


def test_a_round_adds_clipped_updates_over_a_fixed_number_of_devices() -> None:
    """1 + (1 + clip(8 → 2)) / 4, whatever the sample counts."""
    assert release([1.0, 8.0], noise_multiplier=0.0) == pytest.approx([1.75, 1.0], rel=1e-5)


def test_a_small_bound_holds_for_large_weights() -> None:
    """Weights of about 100 in single precision are 8e-6 apart: rounded, 40,000 of them exceed C = 0.01."""
    model = nn.Linear(200, 200, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.fill_(100.0)
    before = model.weight.detach().clone()
    change = torch.randn(200, 200, generator=torch.Generator().manual_seed(0))
    update = Update(0, 1, 0.5, {"weight": 100.0 + change}, Extras())
    settings = {**PRIVATE, "noise_multiplier": 0.0, "clip_norm": 0.01, "devices_per_round": 1}
    absorb_privately(model, [update], dict(model.state_dict()), Experiment(**settings), round_number=0)
    assert float((model.weight.detach() - before).norm()) == pytest.approx(0.01, rel=1e-8)


def test_noise_comes_even_when_nobody_answers() -> None:
    quiet, noisy = release([], 0.0), release([], 1.0)
    assert quiet == [1.0, 1.0]
    assert noisy != quiet
    assert noisy == release([], 1.0)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"clip_norm": None}, "needs clip_norm"),
        ({"aggregation": "median"}, "aggregation = 'median'"),
        ({"min_devices": 2}, "never repeated"),
        ({"method": "fedmef"}, "adjust_until = 0"),
        ({"method": "zerofl"}, "method = 'zerofl'"),
    ],
)
def test_what_could_not_be_promised_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        check_names(Experiment(**{**PRIVATE, **changes}))


def test_a_private_run_says_what_it_cost_and_resumes(tmp_path: Path) -> None:
    settings = {**PRIVATE, "method": "fedmef", "adjust_until": 0, "noise_multiplier": 0.5, "clip_norm": 0.5}
    settings |= {"width": 8, "devices": 12, "devices_per_round": 4, "local_epochs": 1, "engine": "inline"}
    run = fedmef.run(Experiment(**settings, rounds=3), tmp_path / "run")
    epsilons = [record["epsilon"] for record in run.metrics]
    assert epsilons == sorted(epsilons)
    assert run.summary["epsilon"] == epsilons[-1] == spent_epsilon(run.experiment, 3)
