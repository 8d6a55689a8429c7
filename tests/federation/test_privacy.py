"""Client-level differential privacy: what a round releases, and what it costs."""

import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import fedmef
from fedmef.errors import Interrupted, UserError
from fedmef.experiment.settings import Experiment
from fedmef.federation.collection import choose_devices
from fedmef.federation.preparation import check_names
from fedmef.federation.privacy import absorb_privately, spent_epsilon
from fedmef.methods import Extras, Update
from fedmef.sparsity.model import Model
from fedmef.sparsity.network import Input, Network
from fedmef.sparsity.operations import BatchNorm, Flatten, Linear
from tests.federation.small import digest, interrupted_after

PRIVATE: dict[str, Any] = {"method": "fedavg_sap", "noise_multiplier": 1.0, "clip_norm": 2.0}
REPEATABLE: dict[str, Any] = {**PRIVATE, "noise_source": "seed"}


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


def test_devices_are_sampled_independently() -> None:
    experiment = Experiment(**PRIVATE, devices=100, devices_per_round=10)
    counts = [len(choose_devices(experiment, number)) for number in range(300)]
    assert sum(counts) / len(counts) == pytest.approx(10, abs=0.6)
    assert 2.4 < np.std(counts) < 3.6  # of a binomial: 3


def linear(inputs: int, outputs: int, value: float, kind: Literal["float32", "float64"]) -> Model:
    """A dense layer whose weights are all this."""
    layer = Linear(name="out", inputs=("flat",), module="out", shape=(outputs, inputs), dtype=kind)
    pixels = Input((1, 1, inputs), (0.5,), (0.25,))
    network = Network(pixels, (Flatten(name="flat", inputs=("input",)), layer))
    return Model(network, {"out.weight": np.full((outputs, inputs), value, dtype=kind)})


def release(updates: list[float], noise_multiplier: float, source: str = "system") -> list[float]:
    model = linear(2, 1, 1.0, "float32")
    settings = {**PRIVATE, "noise_multiplier": noise_multiplier, "noise_source": source}
    experiment = Experiment(**settings, devices_per_round=4)
    answers = [
        Update(
            number,
            10**number,
            0.5,
            {"out.weight": np.array([[1.0 + change, 1.0]], dtype=np.float32)},
            Extras(),
        )
        for number, change in enumerate(updates)
    ]
    absorb_privately(model, answers, dict(model.state), experiment, round_number=3)
    weights: list[float] = model.state["out.weight"].flatten().tolist()
    return weights


def test_a_round_adds_clipped_updates_over_a_fixed_number_of_devices() -> None:
    """1 + (1 + clip(8 → 2)) / 4, whatever the sample counts."""
    assert release([1.0, 8.0], noise_multiplier=0.0) == pytest.approx([1.75, 1.0], rel=1e-5)


def test_a_small_bound_holds_for_large_weights() -> None:
    """Weights of about 100 in single precision are 8e-6 apart: rounded, 40,000 of them exceed C = 0.01."""
    model = linear(200, 200, 100.0, "float64")
    before = dict(model.state)
    change = np.random.default_rng(0).normal(size=(200, 200)).astype(np.float32)
    update = Update(0, 1, 0.5, {"out.weight": np.float32(100.0) + change}, Extras())
    settings = {**PRIVATE, "noise_multiplier": 0.0, "clip_norm": 0.01, "devices_per_round": 1}
    absorb_privately(model, [update], before, Experiment(**settings), round_number=0)
    moved = model.state["out.weight"] - before["out.weight"]
    assert float(np.linalg.norm(moved)) == pytest.approx(0.01, rel=1e-8)


def test_noise_comes_even_when_nobody_answers() -> None:
    quiet, noisy = release([], 0.0), release([], 1.0)
    assert quiet == [1.0, 1.0]
    assert noisy != quiet


def test_nobody_can_repeat_the_noise_unless_that_was_asked_for() -> None:
    assert release([], 1.0) != release([], 1.0)
    assert release([], 1.0, "seed") == release([], 1.0, "seed")
    secret = Experiment(**PRIVATE, devices=100, devices_per_round=50)
    assert choose_devices(secret, 0) != choose_devices(secret, 0)
    known = Experiment(**REPEATABLE, devices=100, devices_per_round=50)
    assert choose_devices(known, 0) == choose_devices(known, 0)


@pytest.mark.parametrize("source", ["system", "seed"])
def test_the_noise_is_gaussian_of_the_deviation_that_epsilon_counts(source: str) -> None:
    """z C / n = 1.5 · 2 / 4. Of 90,000 numbers the deviation is known to 0.25 %, and so are its tails."""
    model = linear(300, 300, 0.0, "float64")
    settings = {**PRIVATE, "noise_multiplier": 1.5, "devices_per_round": 4, "noise_source": source}
    absorb_privately(model, [], dict(model.state), Experiment(**settings), round_number=0)
    noise = model.state["out.weight"].reshape(-1) / 0.75
    assert abs(noise.mean()) < 0.02
    assert noise.std() == pytest.approx(1.0, abs=0.015)
    for bound, share in ((1, 0.6827), (2, 0.9545), (3, 0.9973)):
        assert (np.abs(noise) < bound).mean() == pytest.approx(share, abs=0.008)
    assert abs(np.corrcoef(noise[:-1], noise[1:])[0, 1]) < 0.02


def test_a_run_says_where_its_noise_came_from(tmp_path: Path) -> None:
    settings = {**PRIVATE, "width": 4, "devices": 4, "devices_per_round": 2, "local_epochs": 1, "rounds": 1}
    runs = [fedmef.run(Experiment(**settings, engine="inline"), tmp_path / name) for name in "ab"]
    assert 'noise_source = "system"' in (runs[0].path / "config.toml").read_text()
    assert digest(runs[0].path) != digest(runs[1].path)


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
    settings = {
        **REPEATABLE,
        "method": "fedmef",
        "adjust_until": 0,
        "noise_multiplier": 0.5,
        "clip_norm": 0.5,
    }
    settings |= {"width": 8, "devices": 12, "devices_per_round": 4, "local_epochs": 1, "engine": "inline"}
    run = fedmef.run(Experiment(**settings, rounds=3), tmp_path / "run")
    epsilons = [record.epsilon for record in run.rounds]
    assert epsilons == [spent_epsilon(run.experiment, rounds) for rounds in (1, 2, 3)]
    assert run.summary.epsilon == epsilons[-1]
    with pytest.raises(Interrupted):
        fedmef.run(Experiment(**settings, rounds=3), tmp_path / "cut", callbacks=[interrupted_after(1)])
    assert digest(fedmef.resume(tmp_path / "cut").path) == digest(run.path)


def test_a_variance_stays_one_whatever_the_noise() -> None:
    settings = {**PRIVATE, "noise_multiplier": 1000.0, "devices_per_round": 1}
    layer = BatchNorm(name="bn", inputs=("input",), module="bn", channels=1)
    network = Network(Input((1, 1, 1), (0.5,), (0.25,)), (layer, Flatten(name="flat", inputs=("bn",))))
    model = Model(network, {name: np.ones(1, dtype=np.float32) for name in network.floats})
    for number in range(20):
        absorb_privately(model, [], dict(model.state), Experiment(**settings), number)
        assert (model.state["bn.running_var"] >= 0).all()
    assert (model.state["bn.weight"] != 1).all()
