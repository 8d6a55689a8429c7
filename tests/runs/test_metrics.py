import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedmef.errors import FedmefError, FedmefWarning, UserError
from fedmef.experiment.settings import Experiment
from fedmef.runs import metrics
from fedmef.runs.directory import Run, read_finished
from fedmef.runs.metrics import check_length
from fedmef.runs.records import DeviceReport
from tests.runs.written import NETWORK, a_round, a_state, a_summary


def a_report(device: int = 7) -> DeviceReport:
    return DeviceReport(device=device, seconds=1.0, peak_memory=10, bytes_down=3, bytes_up=4)


def a_run(path: Path, rounds: int = 2) -> Run:
    run = Run.create(path, Experiment(rounds=rounds), NETWORK)
    for number in range(rounds):
        run.log(a_round(number, device_reports=[a_report(number)]))
        run.write_checkpoint(a_state(), number + 1)
    return run


def test_what_devices_measured_has_a_file_of_its_own(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    assert all("device_reports" not in json.loads(line) for line in lines)
    assert [record.device_reports for record in Run.open(run.path).rounds] == [[a_report(0)], [a_report(1)]]


def test_the_file_is_optional_and_its_damage_costs_only_itself(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    file = run.path / "devices.jsonl"
    file.write_bytes(b'{"round": 9, "device_reports": [{"device": -1}]}\n' + file.read_bytes())
    with pytest.warns(FedmefWarning, match=r"devices.jsonl is damaged: device_reports.0.device: .* left out"):
        assert [record.device_reports for record in Run.open(run.path).rounds] == [[], []]
    file.unlink()
    assert [record.device_reports for record in Run.open(run.path).rounds] == [[], []]


def test_runs_of_earlier_versions_have_the_reports_in_their_metrics(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    (run.path / "devices.jsonl").unlink()
    old = [a_round(number, device_reports=[a_report(number)]) for number in range(2)]
    (run.path / "metrics.jsonl").write_text("".join(record.model_dump_json() + "\n" for record in old))
    assert Run.open(run.path).rounds == old
    run.read_checkpoint()  # as when it is resumed
    assert Run.open(run.path).rounds == old


def test_a_run_of_version_0_1_can_be_read() -> None:
    run = read_finished(Path(__file__).parent / "version-0.1")
    assert run.summary.fedmef == "0.1.0"
    assert len(run.rounds) == run.summary.rounds


def test_published_runs_can_be_read_also_those_with_reports_in_their_metrics() -> None:
    results = Path(__file__).parents[2] / "results"
    files = sorted(results.rglob("metrics.jsonl"))
    assert len(files) > 100
    for file in files[::10]:
        read_finished(file.parent)
    assert read_finished(results / "extrusion" / "l0.1").rounds[0].device_reports


def test_reports_of_rounds_that_will_be_run_again_are_forgotten(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    run.log(a_round(2, device_reports=[a_report(2)]))
    with (run.path / "devices.jsonl").open("a") as file:
        file.write('{"round": 3, "dev')  # the power went out here
    assert run.read_checkpoint() is not None
    run.log(a_round(2, device_reports=[a_report(5)]))
    assert [record.device_reports for record in run.rounds] == [[a_report(n)] for n in (0, 1, 5)]


def test_rounds_are_read_once_and_again_when_they_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, reads = a_run(tmp_path / "run"), []
    reader = metrics.read_rounds

    def counted(folder: Path) -> object:
        reads.append(folder)
        return reader(folder)

    monkeypatch.setattr("fedmef.runs.directory.read_rounds", counted)
    assert len(run.rounds) == len(run.rounds) == 2
    run.rounds.clear()
    run.log(a_round(2))
    assert len(run.rounds) == 3
    assert len(reads) == 2


def test_a_run_never_grows_files_that_it_cannot_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run(tmp_path / "run")
    monkeypatch.setattr(metrics, "MAXIMUM_DEVICES", (run.path / "devices.jsonl").stat().st_size)
    run.log(a_round(2, device_reports=[a_report()]))  # reports are left out, and nothing else
    assert [len(record.device_reports) for record in run.rounds] == [1, 1, 0]
    monkeypatch.setattr(metrics, "MAXIMUM_METRICS", (run.path / "metrics.jsonl").stat().st_size)
    with pytest.raises(FedmefError, match=r"metrics.jsonl would have more than .* bytes"):
        run.log(a_round(3))
    assert len(run.rounds) == 3


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("config.toml", "fedmef.runs.directory.MAXIMUM_CONFIG_BYTES"),
        ("network.json", "fedmef.runs.directory.LARGEST_NETWORK"),
        ("checkpoint.safetensors", "fedmef.runs.reading.MAXIMUM_BYTES"),
        ("checkpoint.safetensors", "fedmef.runs.reading.MAXIMUM_HEADER_BYTES"),
        ("model.safetensors", "fedmef.runs.reading.MAXIMUM_BYTES"),
        ("summary.json", "fedmef.runs.directory.MAXIMUM_SUMMARY"),
    ],
)
def test_what_could_not_be_read_again_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, limit: str
) -> None:
    run = a_run(tmp_path / "run")
    monkeypatch.setattr(limit, 100)
    writes: dict[str, Callable[[], object]] = {
        "checkpoint.safetensors": lambda: run.write_checkpoint(a_state(), 3),
        "model.safetensors": lambda: run.finish(a_state(), a_summary(rounds=2)),
        "summary.json": lambda: run.finish(a_state(), a_summary(rounds=2)),
    }
    replace = lambda: Run.create(run.path, Experiment(), NETWORK, overwrite=True)  # noqa: E731
    with pytest.raises(UserError, match=r"never read|too many arrays"):
        writes.get(name, replace)()
    monkeypatch.undo()
    assert len(run.finished_rounds()) == 2  # all is as it was


@pytest.mark.parametrize(
    "settings", [{"rounds": 10**9}, {"rounds": 400, "devices": 10**4, "devices_per_round": 10**4}]
)
def test_a_run_whose_metrics_nobody_could_read_is_refused_before_it_begins(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"rounds = {settings['rounds']} .*: metrics.jsonl would have"):
        check_length(Experiment(**settings))
    check_length(Experiment(rounds=10_000))
    check_length(Experiment(rounds=500, devices=1000, devices_per_round=1000))


def test_more_entries_than_an_honest_run_can_have_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_run(tmp_path / "run")
    (run.path / "devices.jsonl").unlink()
    monkeypatch.setattr(metrics, "MOST_TABLES", 4)
    assert len(Run.open(run.path).rounds) == 2
    monkeypatch.setattr(metrics, "MOST_TABLES", 1)
    with pytest.raises(UserError, match="more than 1 entries"):
        _ = Run.open(run.path).rounds


def test_more_rounds_than_an_honest_run_can_have_are_not_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="would have"):
        check_length(Experiment(rounds=metrics.MOST_LINES + 1, devices_per_round=1))
    run = a_run(tmp_path / "run")
    file = run.path / "metrics.jsonl"
    content = file.read_bytes()
    file.write_bytes(content + b"nonsense\n" * metrics.MOST_LINES)
    for read in (lambda: run.rounds, run.finished_rounds, run.read_checkpoint):
        with pytest.raises(UserError, match=f"more than {metrics.MOST_LINES:,} lines"):
            read()


def test_reports_of_more_rounds_than_there_are_are_not_read(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    with (run.path / "devices.jsonl").open("a") as file:
        file.write("nonsense\n" * 1000)
    assert [record.device_reports for record in Run.open(run.path).rounds] == [[a_report(0)], [a_report(1)]]
