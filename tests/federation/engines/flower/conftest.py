from pathlib import Path

import pytest
from flwr.supercore.task_identity import TaskIdentity


@pytest.fixture(autouse=True)
def _within_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's messages carry who sends them, and devices keep their masks in Flower's home."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    for name in ("task_id", "run_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
