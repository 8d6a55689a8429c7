"""docs/data.md runs from top to bottom, its commands included."""

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.invoking import Invoke, invoke

__all__ = ["invoke"]
PAGE = Path(__file__).parents[2] / "docs" / "data.md"
PIECE = re.compile(r"```python\n(.*?)```|^    (fedmef [^\n]*)$", re.DOTALL | re.MULTILINE)


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    pieces = PIECE.findall(PAGE.read_text(encoding="utf-8"))
    assert len([code for code, _ in pieces if code]) == 5
    for code, command in pieces:
        if code:
            exec(compile(code, PAGE.name, "exec"), names)
        else:
            invoked = invoke(*shlex.split(command)[1:], "--engine", "inline", "--local-epochs", "1")
            assert invoked.code == 0, invoked.errors
