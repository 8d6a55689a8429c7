"""Pages of the documentation that run from top to bottom, their commands included."""

import re
import shlex
import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.cli.invoking import Invoke, invoke

__all__ = ["invoke"]
DOCS = Path(__file__).parents[1] / "docs"
PIECE = re.compile(r"```python\n(.*?)```|^    (fedmef [^\n]*)$", re.DOTALL | re.MULTILINE)


Logged = list[tuple[dict[str, float], int]]


@pytest.fixture
def loggers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Logged]:
    """Stand-ins for Weights & Biases and MLflow, and what they were told: numbers and the round."""
    logged: dict[str, Logged] = {"wandb": [], "mlflow": []}

    @contextmanager
    def begun(*, project: str = "", config: Any = None) -> Any:
        yield SimpleNamespace(log=lambda numbers, step: logged["wandb"].append((numbers, step)))

    wandb, mlflow = (ModuleType(name) for name in logged)
    vars(wandb).update(init=begun)
    vars(mlflow).update(
        start_run=begun,
        log_params=lambda params: logged["mlflow"].append(({"rounds": params["rounds"]}, 0)),
        log_metrics=lambda numbers, step: logged["mlflow"].append((numbers, step)),
        log_artifact=lambda path: logged["mlflow"].append(({"bytes": Path(path).stat().st_size}, -1)),
    )
    for module in (wandb, mlflow):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return logged


@pytest.mark.parametrize(("page", "snippets", "commands"), [("data.md", 5, 2), ("training.md", 9, 3)])
def test_a_page_runs(
    page: str,
    snippets: int,
    commands: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    invoke: Invoke,
    loggers: dict[str, Logged],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, object] = {}
    pieces = PIECE.findall((DOCS / page).read_text(encoding="utf-8"))
    assert [sum(map(bool, kind)) for kind in zip(*pieces, strict=True)] == [snippets, commands]
    for code, command in pieces:
        if file := re.match(r"# (\w+\.py)\n", code):
            (tmp_path / file[1]).write_text(code, encoding="utf-8")
        elif code:
            exec(compile(code, page, "exec"), names)
        else:
            invoked = invoke(*shlex.split(command)[1:], "--engine", "inline", "--local-epochs", "1")
            assert invoked.code == 0, invoked.errors
    sys.modules.pop("mine", None)
    if page == "training.md":
        assert [step for _, step in loggers["wandb"]] == [1, 2, 3]
        assert [step for _, step in loggers["mlflow"]] == [0, 1, 2, 3, -1]
        assert all("test_accuracy" in numbers for numbers, step in loggers["wandb"])
