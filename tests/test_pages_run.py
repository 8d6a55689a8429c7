"""Pages of the documentation that run from top to bottom, their commands included."""

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.invoking import Invoke, invoke

__all__ = ["invoke"]
DOCS = Path(__file__).parents[1] / "docs"
PIECE = re.compile(r"```python\n(.*?)```|^    (fedmef [^\n]*)$", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(("page", "snippets", "commands"), [("data.md", 5, 2), ("training.md", 4, 2)])
def test_a_page_runs(
    page: str, snippets: int, commands: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    pieces = PIECE.findall((DOCS / page).read_text(encoding="utf-8"))
    assert [sum(map(bool, kind)) for kind in zip(*pieces, strict=True)] == [snippets, commands]
    for code, command in pieces:
        if code:
            exec(compile(code, page, "exec"), names)
        else:
            invoked = invoke(*shlex.split(command)[1:], "--engine", "inline", "--local-epochs", "1")
            assert invoked.code == 0, invoked.errors
