"""Collecting a round's updates: who is asked, what a failure costs, and when the run gives up."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pytest

import fedmef
from fedmef.errors import FedmefError
from fedmef.experiment.settings import Experiment
from fedmef.federation.collection import Collected, DeviceError, choose_devices, collect
from fedmef.federation.engines import Lost
from fedmef.federation.engines.inline import InlineEngine
from fedmef.federation.preparation import prepare
from fedmef.federation.server import Server
from fedmef.federation.simulated.fleet import Fleet
from fedmef.methods import Extras, Update
from fedmef.runs.records import DeviceReport, Failed, Round
from fedmef.sparsity.arrays import Array
from fedmef.wire.broadcast import NETWORK as SENT_NETWORK
from fedmef.wire.checksum import UNSET
from fedmef.wire.container import MESSAGE_VERSION, checksum_of, decode
from fedmef.wire.job import read_job
from fedmef.wire.store import Store
from fedmef.wire.update import encode_update
from tests.federation.own_parts import Broken
from tests.federation.small import SMALL, TINY, AfterRounds, digest
from tests.runs.written import NETWORK, a_model, a_state

BROKEN = "tests.federation.own_parts:Broken"


def test_the_same_devices_train_whatever_happened_before() -> None:
    experiment = Experiment(devices=100, devices_per_round=10)
    chosen = [choose_devices(experiment, round_number) for round_number in range(50)]
    assert chosen[7] == choose_devices(experiment, 7)
    assert all(len(set(devices)) == 10 and devices == sorted(devices) for devices in chosen)
    assert len({device for devices in chosen for device in devices}) > 90


def test_a_further_attempt_takes_other_devices_while_there_are_others() -> None:
    experiment = Experiment(devices=8, devices_per_round=3)
    first = choose_devices(experiment, 4)
    second = choose_devices(experiment, 4, 1, set(first))
    assert not set(first) & set(second)
    third = choose_devices(experiment, 4, 2, {*first, *second})
    assert set(range(8)) - {*first, *second} <= set(third)
    assert len(third) == 3


Answer = Callable[[int, bytes], bytes | Lost]


class Scripted:
    """An engine whose devices answer as a function says; it notes what each was sent."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.sent: list[Mapping[int, bytes]] = []
        self.reports: list[DeviceReport | Failed] = []

    def train(self, messages: Mapping[int, bytes]) -> dict[int, bytes | Lost]:
        self.sent.append(messages)
        answers = {device: self.answer(device, message) for device, message in messages.items()}
        self.reports = [
            DeviceReport(device=device, seconds=1.0, peak_memory=1, bytes_down=1, bytes_up=1)
            for device, answer in answers.items()
            if isinstance(answer, bytes)
        ]
        return answers

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


def honest(device: int, message: bytes) -> bytes:
    return answer_of(device, message, {name: a_state()[name] for name in NETWORK.floats})


def answer_of(device: int, message: bytes, weights: dict[str, Array], samples: int = 10) -> bytes:
    answers = checksum_of(message) if message else UNSET  # both are of the same length
    return encode_update(Update(device, samples, 0.5, weights, Extras(), 2, answers), NETWORK)


def collected(answer: Answer, **settings: Any) -> tuple[Collected, Scripted]:
    experiment = Experiment(**{"method": "fedavg", "devices": 6, "devices_per_round": 3, **settings})
    server, engine = Server(experiment, a_model()), Scripted(answer)
    return collect(experiment, server.job(2), server, engine), engine


def test_what_the_devices_gave_is_added_up() -> None:
    result, engine = collected(honest)
    assert result.devices == choose_devices(Experiment(devices=6, devices_per_round=3), 2)
    assert [update.device for update in result.updates] == result.devices
    assert (result.lost, result.rejected, result.attempts) == ([], [], 1)
    assert [report.device for report in result.reports] == result.devices
    assert result.bytes_down == sum(len(message) for message in engine.sent[0].values())
    assert result.bytes_up == sum(len(honest(device, b"")) for device in result.devices)


def test_a_device_that_lacks_something_is_sent_all_of_it_at_once() -> None:
    forgetful = choose_devices(Experiment(devices=6, devices_per_round=3), 2)[1]
    asked: list[int] = []

    def answer(device: int, message: bytes) -> bytes | Lost:
        asked.append(device)
        forgot = device == forgetful and asked.count(device) == 1
        return Lost("I have forgotten", needs_all=True) if forgot else honest(device, message)

    result, engine = collected(answer)
    assert [list(messages) for messages in engine.sent] == [result.devices, [forgetful]]
    assert (result.lost, result.attempts, len(result.updates)) == ([], 1, 3)
    assert [update.device for update in result.updates] == result.devices
    assert result.bytes_down == sum(len(m) for messages in engine.sent for m in messages.values())
    assert sorted(report.device for report in result.reports) == result.devices


def test_a_device_that_always_lacks_something_is_asked_twice_and_then_lost() -> None:
    forgetful = choose_devices(Experiment(devices=6, devices_per_round=3), 2)[1]

    def answer(device: int, message: bytes) -> bytes | Lost:
        return Lost("forgotten", needs_all=True) if device == forgetful else honest(device, message)

    result, engine = collected(answer)
    assert [list(messages) for messages in engine.sent][1:] == [[forgetful]]
    assert result.lost == [Failed(device=forgetful, attempt=0, reason="forgotten")]


def test_failures_of_every_attempt_are_kept_with_their_attempt() -> None:
    first = choose_devices(Experiment(devices=6, devices_per_round=3), 2)

    def answer(device: int, message: bytes) -> bytes | Lost:
        if device == first[0]:
            return Lost("gone")
        return b"garbage" if device in first[1:] else honest(device, message)

    result, engine = collected(answer)
    assert result.attempts == 2
    assert not set(result.devices) & set(first)
    assert result.lost == [Failed(device=first[0], attempt=0, reason="gone")]
    assert [(failed.device, failed.attempt) for failed in result.rejected] == [(d, 0) for d in first[1:]]
    assert [read_job(m).attempt for messages in engine.sent for m in messages.values()] == [0] * 3 + [1] * 3
    assert result.bytes_up == 2 * len(b"garbage") + sum(len(honest(d, b"")) for d in result.devices)


@pytest.mark.parametrize(("wanted", "attempts"), [(None, 1), (1, 1), (2, 5), (3, 5)])
def test_a_third_of_the_devices_is_enough_unless_more_are_asked_for(
    wanted: int | None, attempts: int
) -> None:
    tried: list[int] = []

    def answer(device: int, message: bytes) -> bytes | Lost:
        tried.append(device)
        return honest(device, message) if len(tried) % 3 == 1 else Lost("gone")

    if attempts == 1:
        assert collected(answer, min_devices=wanted)[0].attempts == 1
        return
    with pytest.raises(FedmefError, match=rf"round 3: 1 of 3 devices .* where {wanted} are needed, 5 times"):
        collected(answer, min_devices=wanted)
    assert len(tried) == 15


def test_a_device_that_failed_is_not_believed_to_hold_anything() -> None:
    experiment = Experiment(method="fedavg", devices=3, devices_per_round=3, min_devices=1)
    server = Server(experiment, a_model())

    def answer(device: int, message: bytes) -> bytes | Lost:
        if read_job(message).round != 1:
            return honest(device, message)
        return (Lost("gone"), b"garbage", honest(device, message))[device]

    brought = []
    for number in range(4):
        engine = Scripted(answer)
        collect(experiment, server.job(number), server, engine)
        sent = engine.sent[0].values()
        brought.append([SENT_NETWORK in decode(message, MESSAGE_VERSION)[0] for message in sent])
    assert brought == [[True] * 3, [False] * 3, [True, True, False], [False] * 3]


class Boastful(Scripted):
    """The first device says what no device can say."""

    def __init__(self, answer: Answer, report: DeviceReport | Failed) -> None:
        super().__init__(answer)
        self.report = report

    def train(self, messages: Mapping[int, bytes]) -> dict[int, bytes | Lost]:
        answers = super().train(messages)
        self.reports[0] = self.report
        return answers


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (Failed(device=1, reason="no such seconds"), "no such seconds"),
        (
            DeviceReport(device=1, seconds=1e9, peak_memory=1, bytes_down=1, bytes_up=1),
            "its report of itself is left out: more seconds than it was waited for",
        ),
    ],
)
def test_a_report_that_cannot_be_is_named_and_the_update_used(
    report: DeviceReport | Failed, reason: str
) -> None:
    experiment = Experiment(method="fedavg", devices=3, devices_per_round=3)
    server = Server(experiment, a_model())
    result = collect(experiment, server.job(0), server, Boastful(honest, report))
    assert [update.device for update in result.updates] == [0, 1, 2]
    assert [kept.device for kept in result.reports] == [1, 2]  # not that of the first
    assert result.doubted == [Failed(device=1, attempt=0, reason=reason)]
    assert (result.lost, result.rejected) == ([], [])


def test_a_reason_of_characters_that_no_file_can_have_stops_nobody() -> None:
    first = choose_devices(Experiment(devices=6, devices_per_round=3), 2)[0]

    def answer(device: int, message: bytes) -> bytes | Lost:
        return Lost.from_text("\ud800 gone") if device == first else honest(device, message)

    (lost,) = collected(answer)[0].lost
    assert lost.reason == "\\ud800 gone"
    assert lost.model_dump_json()


def claiming(samples: Mapping[int, int]) -> Answer:
    weights = {name: a_state()[name] for name in NETWORK.floats}
    return lambda device, message: answer_of(device, message, weights, samples.get(device, 10))


def test_samples_that_nobody_can_have_count_for_the_median() -> None:
    first = choose_devices(Experiment(devices=6, devices_per_round=3), 2)[0]
    result, _ = collected(claiming({first: 500}))
    assert [update.samples for update in result.updates] == [10, 10, 10]
    said = "says that it has 500 samples, and counts for 10"
    assert result.doubted == [Failed(device=first, attempt=0, reason=said)]
    assert [update.samples for update in collected(claiming({first: 100}))[0].updates] == [100, 10, 10]
    limited, _ = collected(claiming({first: 100}), max_samples=99)
    assert [update.samples for update in limited.updates] == [10, 10, 10]


def test_absurd_claims_of_samples_cost_the_update_and_name_the_device() -> None:
    first = choose_devices(Experiment(devices=6, devices_per_round=3), 2)[0]
    result, _ = collected(claiming({first: 2**47}))
    assert [update.device for update in result.updates] == result.devices[1:]
    (failed,) = result.rejected
    assert (failed.device, failed.attempt) == (first, 0)
    assert "and no more than 1,000 are plausible (max_samples_ratio = 10)" in failed.reason


def raising(device: int, message: bytes) -> Lost:
    return Lost(f"device {device} failed: out of coffee", traceback="Traceback: ...")


def test_a_fault_of_the_code_hits_all_devices_and_shows_its_traceback() -> None:
    with pytest.raises(FedmefError, match=r"^device \d failed: out of coffee$") as stopped:
        collected(raising)
    assert isinstance(stopped.value.__cause__, DeviceError)
    assert str(stopped.value.__cause__) == "Traceback: ..."


def test_training_that_diverges_everywhere_is_no_fault_of_devices() -> None:
    def diverged(device: int, message: bytes) -> bytes:
        weights = {name: np.full_like(a_state()[name], np.nan) for name in NETWORK.floats}
        return answer_of(device, message, weights)

    with pytest.raises(FedmefError, match=r"round 3: .*diverged; lower learning_rate \(now 0\.3\)"):
        collected(diverged)


def test_weights_are_renormalised_over_those_that_answered(tmp_path: Path) -> None:
    """Losing a device is as if it had never been chosen."""
    settings = {**SMALL, "devices": 3, "rounds": 1, "adjust_every": 1, "adjust_until": 9}
    three = Experiment(**settings, faults="drop@0:1")
    run = fedmef.run(three, tmp_path / "run")
    (record,) = run.rounds
    assert [failed.device for failed in record.lost] == [1]

    prepared = prepare(three)
    server = Server(three, prepared.model)
    job, before = server.job(0), dict(server.model.state)
    fleet = Fleet.build(three, prepared.dataset, Store(tmp_path / "held"))
    answers = InlineEngine(fleet).train(server.broadcast(job, [0, 2]))
    received = {device: answer for device, answer in answers.items() if isinstance(answer, bytes)}
    updates, _ = server.check(received, job)
    server.absorb(updates, job)
    first, second = updates
    share = first.samples / (first.samples + second.samples)
    assert share != 0.5
    for name in first.weights:
        mean = share * first.weights[name] + (1 - share) * second.weights[name]
        np.testing.assert_allclose(server.model.state[name], mean, rtol=1e-5, atol=1e-6)
        assert not np.array_equal(server.model.state[name], before[name])
    server.adjust(updates, job)
    final = run.model().state
    assert all(np.array_equal(final[name], array) for name, array in server.model.state.items())


def test_too_few_devices_stop_the_run_which_can_be_resumed(tmp_path: Path) -> None:
    settings = {**SMALL, "rounds": 2, "min_devices": 4, "round_attempts": 2, "faults": "drop@1:3,slow@1:4"}
    settings |= {"devices": 5, "devices_per_round": 4}
    with pytest.raises(FedmefError, match=r"round 2: \d of 4 devices .* where 4 are needed, 2 times over"):
        fedmef.run(Experiment(**settings), tmp_path / "run")
    run = fedmef.resume(tmp_path / "run", {"min_devices": 2})
    assert run.summary.rounds == 2
    assert run.summary.lost_updates > 0


def test_a_round_below_min_devices_is_repeated_with_others(tmp_path: Path) -> None:
    first = choose_devices(Experiment(**SMALL), 0)
    faults = ",".join(f"drop@0:{device}" for device in first)
    run = fedmef.run(Experiment(**SMALL, rounds=1, faults=faults), tmp_path / "run")
    (record,) = run.rounds
    assert record.attempts == 2
    assert not set(record.devices) & set(first)
    assert run.summary.repeated_attempts == 1
    assert record.bytes_down > 1.5 * record.bytes_up


def test_a_broken_device_that_is_alone_in_a_round_is_replaced_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**TINY, "devices": 8, "devices_per_round": 1, "method": BROKEN}
    (first,) = choose_devices(Experiment(**settings), 0)
    monkeypatch.setattr(Broken, "devices", (first,))
    (record,) = fedmef.run(Experiment(**settings), tmp_path / "run").rounds
    assert record.attempts == 2
    assert record.lost == [
        Failed(device=first, attempt=0, reason=f"device {first} failed: RuntimeError: on purpose")
    ]


PRIVATE: dict[str, Any] = {
    "noise_multiplier": 1.0,
    "clip_norm": 1.0,
    "adjust_until": 0,
    "noise_source": "seed",
}


@pytest.mark.parametrize(
    ("changes", "attempts"),
    [
        ({}, 2),  # others prove it
        ({"round_attempts": 1}, 1),
        ({"devices_per_round": 8}, 1),  # there are no others
        ({**PRIVATE, "devices_per_round": 4}, 1),  # none will be asked
    ],
)
def test_an_error_of_all_devices_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], attempts: int
) -> None:
    monkeypatch.setattr(Broken, "devices", tuple(range(8)))
    monkeypatch.setattr(Broken, "asked", [])
    settings = {**TINY, "devices": 8, "devices_per_round": 2, "method": BROKEN, **changes}
    with pytest.raises(FedmefError, match=r"^device \d failed: RuntimeError: on purpose$") as stopped:
        fedmef.run(Experiment(**settings), tmp_path / "run")
    assert isinstance(stopped.value.__cause__, DeviceError)
    assert "RuntimeError: on purpose" in str(stopped.value.__cause__)
    assert len(set(Broken.asked)) == attempts * len(choose_devices(Experiment(**settings), 0))


def test_a_private_round_is_not_repeated_though_its_only_device_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Broken, "devices", tuple(range(8)))
    settings = {**TINY, **PRIVATE, "devices": 8, "devices_per_round": 1, "method": BROKEN}
    seed = next(s for s in range(99) if len(choose_devices(Experiment(**settings, seed=s), 0)) == 1)
    (record,) = fedmef.run(Experiment(**settings, seed=seed), tmp_path / "run").rounds
    assert (record.attempts, len(record.lost)) == (1, 1)


@pytest.mark.parametrize("kind", ["*", "*.json", "*.safetensors"])
@pytest.mark.parametrize(
    ("engine", "damage"),
    [
        ("inline", Path.unlink),
        ("inline", lambda file: file.write_bytes(b"damaged")),
        ("processes", Path.unlink),
    ],
)
def test_what_devices_lost_costs_bytes_and_no_update(
    tmp_path: Path, engine: str, damage: Callable[[Path], object], kind: str
) -> None:
    settings = {**TINY, "rounds": 4, "devices": 5, "devices_per_round": 4, "workers": 1}

    def spoil(record: Round) -> None:
        if record.round == 1:
            files = list((tmp_path / "spoilt" / "held").glob(kind))
            assert files
            for file in files:
                damage(file)

    whole = fedmef.run(Experiment(**settings), tmp_path / "whole")
    spoilt = fedmef.run(
        Experiment(**{**settings, "engine": engine}), tmp_path / "spoilt", callbacks=[AfterRounds(spoil)]
    )
    assert digest(spoilt.path) == digest(whole.path)
    assert all(record.lost == [] and record.attempts == 1 for record in spoilt.rounds)
    more = [a.bytes_down - b.bytes_down for a, b in zip(spoilt.rounds, whole.rounds, strict=True)]
    assert more[2] > 0
    assert (more[0], more[1], more[3]) == (0, 0, 0)
