"""The Python that the documentation shows parses, and what it imports is there; the tutorials run."""

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"```python\n(.*?)```|(?<=\n\n)((?: {4}[^\n]*\n|\n)+)", re.DOTALL)


def python_blocks(page: Path) -> list[str]:
    blocks = [fenced or indented for fenced, indented in BLOCK.findall(page.read_text(encoding="utf-8"))]
    return [block for block in map(dedent, blocks) if re.match(r"\s*(import|from) ", block)]


def test_the_documentation_shows_python() -> None:
    assert sum(len(python_blocks(page)) for page in PAGES) >= 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_pages_python_imports_is_there(page: Path) -> None:
    for block in python_blocks(page):
        tree = ast.parse(block)
        tree.body = [line for line in tree.body if isinstance(line, (ast.Import, ast.ImportFrom))]
        exec(compile(tree, page.name, "exec"), {})


def test_no_page_opens_a_superlink_to_a_network() -> None:
    """Whoever reaches one may run code there: it listens at the loopback, which is also its default."""
    template = ROOT / "src/fedmef/federation/engines/flower/template"
    texts = [page.read_text(encoding="utf-8") for page in (*PAGES, *template.glob("*.txt"))]
    commands = [
        command
        for text in texts
        for command in re.findall(r"flower-superlink (--(?:[^\n]|(?<=\\)\n)*)", text)
    ]
    assert len(commands) >= 3
    for command in commands:
        assert "--host 127.0.0.1" in command or "--host" not in command, command


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tutorial-edge", "tutorial-researcher"])
def test_a_tutorials_commands_run_from_top_to_bottom(name: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    (own,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "mine.py").write_text(own, encoding="utf-8")
    commands = re.findall(r"^ {4}(fedmef .*)$", page, re.MULTILINE)
    assert len(commands) >= 5
    for command in commands:
        words = [sys.executable, "-m", *shlex.split(command)]
        ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, f"{command}: {ended.stderr[-1000:]}"
