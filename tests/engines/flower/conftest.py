import pytest
from flwr.supercore.task_identity import TaskIdentity


@pytest.fixture(autouse=True)
def _within_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's messages carry who sends them."""
    for name in ("task_id", "run_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
