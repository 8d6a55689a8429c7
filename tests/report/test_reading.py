import json
import re
from pathlib import Path
from typing import Any

import pytest

from fedmef.report.reading import read_runs
from fedmef.runs.directory import Run
from tests.report.reading import groups_in
from tests.runs.written import NETWORK
from tests.small import small, write_run


def test_a_directory_of_runs_is_read_in_the_order_of_the_table(tmp_path: Path) -> None:
    for method in ("fedmef", "fedavg"):
        for seed in (1, 0):
            write_run(tmp_path / f"{method}{seed}", small(method, seed), [0.5])
    (tmp_path / "report").mkdir()
    found = read_runs([tmp_path, tmp_path / "fedavg0"])
    assert [run.path.name for run in found.runs] == ["fedavg0", "fedavg1", "fedmef0", "fedmef1"]
    assert found.left_out == ()


def test_an_unfinished_run_is_left_out_and_the_others_stay(tmp_path: Path) -> None:
    write_run(tmp_path / "whole", small(), [0.5])
    Run.create(tmp_path / "half", small(), NETWORK)
    found = read_runs([tmp_path])
    assert [run.path.name for run in found.runs] == ["whole"]
    (left,) = found.left_out
    assert left.path == tmp_path / "half"
    assert "is not finished" in left.reason


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("test_accuracy", "<script>"),
        ("test_accuracy", float("nan")),
        ("test_accuracy", 7),
        ("image_shape", [1, 8]),
        ("image_shape", [1, 8, -8]),
        ("layers", {"a": {"active": 1, "size": 0}}),
        ("layers", ["a"]),
        ("bytes_up", 10**400),
        ("rounds", 3),
    ],
)
def test_a_summary_with_an_impossible_value_is_damaged(tmp_path: Path, field: str, value: object) -> None:
    run = write_run(tmp_path / "run", small(), [0.5, 0.6])
    (run.path / "summary.json").write_text(json.dumps({**run.summary.model_dump(), field: value}))
    (left,) = read_runs([run.path]).left_out
    assert "is damaged" in left.reason


@pytest.mark.parametrize("metrics", ["", "{", "[]\n[]\n", '{"round": 0}\n{"round": 1}\n'])
def test_metrics_that_are_not_whole_are_damaged(tmp_path: Path, metrics: str) -> None:
    run = write_run(tmp_path / "run", small(), [0.5, 0.6])
    (run.path / "metrics.jsonl").write_text(metrics)
    (left,) = read_runs([run.path]).left_out
    assert "metrics.jsonl is damaged" in left.reason


def test_what_is_no_run_at_all_is_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "no_config", small(), [0.5])
    (run.path / "config.toml").unlink()
    (tmp_path / "empty").mkdir()
    paths = [run.path, tmp_path / "empty", tmp_path / "nowhere"]
    reasons = [left.reason for left in read_runs(paths).left_out]
    assert len(reasons) == 3
    assert "has no config.toml" in reasons[0]
    assert "there is no run directory" in reasons[2]


def test_a_folder_that_cannot_be_looked_into_is_left_out_and_the_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "good", small(), [0.5])
    (tmp_path / "secret").mkdir()
    looked = Path.is_file

    def is_file(path: Path) -> bool:
        if path.parent.name == "secret":
            raise PermissionError(13, "Permission denied")
        return looked(path)

    monkeypatch.setattr(Path, "is_file", is_file)
    found = read_runs([tmp_path])
    assert [run.path.name for run in found.runs] == ["good"]
    assert [left.path.name for left in found.left_out] == ["secret"]


@pytest.mark.parametrize(
    ("settings", "summary", "reason"),
    [
        ({"width": 10**4}, {}, "weights: too much"),
        ({"width": 10**15}, {}, "."),
        ({"batch_size": 2**20}, {}, "a batch of it takes some .* too much"),
        ({}, {"image_shape": [3, 10**6, 10**6]}, "a batch of it takes some .* too much"),
        ({}, {"classes": 10**18}, "too much"),
        ({"model": "nothing"}, {}, "unknown model 'nothing'"),
    ],
)
def test_a_network_of_any_size_is_not_built_for_a_report(
    tmp_path: Path, settings: dict[str, Any], summary: dict[str, Any], reason: str
) -> None:
    write_run(tmp_path / "run", small(**settings), [0.5], **summary)
    (group,) = groups_in(tmp_path)
    for memory in (group.memory, group.process, group.dense):
        assert isinstance(memory, str)
        assert re.search(reason, memory)
    assert group.estimated is None
