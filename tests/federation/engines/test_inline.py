from pathlib import Path
from typing import Any

import pytest

import fedmef
from fedmef.errors import FedmefError
from fedmef.experiment.settings import Experiment
from fedmef.federation.engines import Lost
from fedmef.federation.engines.inline import InlineEngine
from fedmef.federation.preparation import prepare
from fedmef.federation.server import Server
from fedmef.federation.simulated.fleet import Fleet
from fedmef.runs.records import DeviceReport
from fedmef.wire.store import Store
from tests.federation.own_parts import Broken
from tests.federation.small import SMALL, TINY


def engine_and_messages(
    folder: Path, devices: list[int], **settings: Any
) -> tuple[InlineEngine, dict[int, bytes]]:
    experiment = Experiment(**{**TINY, **settings})
    prepared = prepare(experiment)
    server = Server(experiment, prepared.model)
    fleet = Fleet.build(experiment, prepared.dataset, Store(folder))
    return InlineEngine(fleet), server.broadcast(server.job(0), devices)


def test_each_device_answers_and_says_what_it_measured(tmp_path: Path) -> None:
    engine, messages = engine_and_messages(tmp_path, [4, 1])
    with engine:
        answers = engine.train(messages)
    assert list(answers) == [4, 1]
    for report, device in zip(engine.reports, (4, 1), strict=True):
        answer = answers[device]
        assert isinstance(answer, bytes)
        assert isinstance(report, DeviceReport)
        assert report.device == device
        assert (report.bytes_down, report.bytes_up) == (len(messages[device]), len(answer))
        assert report.seconds > 0
        assert report.peak_memory > 10**7
    engine.train({})
    assert engine.reports == []


def test_a_device_that_fails_costs_its_own_update_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Broken, "devices", (1,))
    method = "tests.federation.own_parts:Broken"
    engine, messages = engine_and_messages(tmp_path, [0, 1, 2], method=method, faults="drop@0:0")
    answers = engine.train(messages)
    assert answers[0] == Lost("dropped out (injected)")
    broken = answers[1]
    assert isinstance(broken, Lost)
    assert broken.reason == "device 1 failed: RuntimeError: on purpose"
    assert "own_parts.py" in broken.traceback
    assert isinstance(answers[2], bytes)
    assert [report.device for report in engine.reports] == [2]


def test_an_answer_after_the_deadline_is_lost(tmp_path: Path) -> None:
    settings = {**SMALL, "method": "tests.federation.own_parts:Slow"}
    settings |= {"rounds": 1, "deadline": 0.1, "round_attempts": 2}
    with pytest.raises(FedmefError, match=r"2 times over .*no answer within the deadline of 0\.1 s"):
        fedmef.run(Experiment(**settings), tmp_path / "run")
