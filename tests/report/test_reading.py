import json
from pathlib import Path

import pytest

from fedmef.report.reading import read_runs
from fedmef.runs.directory import Run
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
