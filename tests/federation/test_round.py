"""One round: what happens in which order, and what is told of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedmef
from fedmef.experiment.settings import Experiment
from fedmef.federation.engines.inline import InlineEngine
from fedmef.federation.evaluation import Score
from fedmef.federation.preparation import prepare
from fedmef.federation.round import Happened, play_round
from fedmef.federation.server import Server
from fedmef.federation.simulated.fleet import Fleet
from fedmef.runs.directory import Run
from fedmef.sparsity.model import State
from fedmef.wire.store import Store
from tests.federation.small import FIVE_ADJUSTMENTS, TINY


class Rounds:
    """A server and its devices; `scored` are the states of the model that were evaluated, in order."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        experiment = Experiment(**{**TINY, "rounds": 6, **settings})
        prepared = prepare(experiment)
        self.server = Server(experiment, prepared.model)
        self.engine = InlineEngine(Fleet.build(experiment, prepared.dataset, Store(folder)))
        self.scored: list[State] = []

    def play(self, number: int) -> Happened:
        self.scored.clear()
        return play_round(number, self.server, self.engine, self._score)

    def _score(self) -> Score:
        self.scored.append(dict(self.server.model.state))
        return Score(0.125 * len(self.scored), 1.0)


def same(one: State, other: State) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one)


def test_an_ordinary_round_changes_the_weights_and_no_mask(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path)
    before = dict(rounds.server.model.state)
    happened = rounds.play(0)
    after = rounds.server.model.state
    for name, array in before.items():
        assert np.array_equal(array, after[name]) == name.endswith(".mask"), name
    assert (happened.before, happened.adjustment, happened.adjusted) == (None, None, False)
    assert happened.job == rounds.server.job(0)
    assert happened.active_weights == sum(rounds.server.active.values())
    assert happened.train_loss == pytest.approx(
        sum(update.samples * update.loss for update in happened.collected.updates)
        / sum(update.samples for update in happened.collected.updates)
    )
    assert happened.seconds > 0
    assert happened.epsilon is None


def test_an_adjustment_is_scored_before_and_after(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path, evaluate_every=100)
    rounds.play(0)
    happened = rounds.play(1)
    assert happened.adjusted
    assert happened.adjustment is not None
    assert happened.adjustment.exchanged > 0
    first, second = rounds.scored
    masks = rounds.server.model.masks()
    assert any(not np.array_equal(first[f"{name}.mask"], mask) for name, mask in masks.items())
    assert same(second, rounds.server.model.state)
    assert (happened.before, happened.score) == (Score(0.125, 1.0), Score(0.25, 1.0))


def test_where_devices_adjust_there_is_nothing_to_compare(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path, method="feddst", model="small_cnn")
    rounds.play(0)
    happened = rounds.play(1)
    assert happened.adjusted
    assert happened.before is None
    assert len(rounds.scored) == 1


@pytest.mark.parametrize(
    ("number", "settings", "scores"),
    [
        (0, {}, 1),
        (0, {"evaluate_every": 2}, 0),
        (1, {"evaluate_every": 2}, 1),
        (5, {"evaluate_every": 100}, 1),  # the last one
    ],
)
def test_a_round_is_scored_when_it_is_due_and_the_last_one_always(
    tmp_path: Path, number: int, settings: dict[str, Any], scores: int
) -> None:
    rounds = Rounds(tmp_path, adjust_until=0, **settings)
    happened = rounds.play(number)
    assert len(rounds.scored) == scores
    assert (happened.score is None) == (scores == 0)


def test_a_private_round_says_what_privacy_has_cost_so_far(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path, adjust_until=0, noise_multiplier=1.0, clip_norm=1.0, devices_per_round=2)
    spent = [rounds.play(number).epsilon for number in range(2)]
    assert spent[0] is not None
    assert spent[1] is not None
    assert 0 < spent[0] < spent[1]


@pytest.fixture(scope="module")
def inline_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fedmef.run(Experiment(**FIVE_ADJUSTMENTS), tmp_path_factory.mktemp("runs") / "inline")


def test_a_round_logs_everything(inline_run: Run) -> None:
    first, second, *_, last = inline_run.rounds
    assert [record.round for record in inline_run.rounds] == list(range(7))
    assert first.adjusted is False
    assert first.accuracy_before_adjustment is None
    assert second.adjusted is True
    assert second.accuracy_before_adjustment is not None
    assert second.accuracy_after_adjustment == second.test_accuracy
    assert second.exchanged_weights
    assert second.dropped_magnitude is not None
    assert second.dropped_magnitude >= 0
    assert second.dropped_newcomers is None  # nothing had grown before
    assert all(record.dropped_newcomers is not None for record in inline_run.rounds[2:-1])
    assert second.bytes_up > first.bytes_up  # the gradients
    assert last.train_loss is not None
    assert first.train_loss is not None
    assert last.train_loss < first.train_loss
    for record in inline_run.rounds:
        assert record.seconds > 0
        assert [report.device for report in record.device_reports] == record.devices
        assert sum(report.bytes_down for report in record.device_reports) == record.bytes_down
        assert sum(report.bytes_up for report in record.device_reports) == record.bytes_up
        assert all(report.seconds > 0 and report.peak_memory > 10**7 for report in record.device_reports)


def test_active_weights_stay_the_same_through_five_adjustments(inline_run: Run) -> None:
    assert sum(record.adjusted for record in inline_run.rounds) == 5
    assert len({record.active_weights for record in inline_run.rounds}) == 1
