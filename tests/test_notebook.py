"""The notebooks of examples/ run from top to bottom, as a new user runs them; Jupyter is not needed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))
RUNNER = """
import json, sys
for number, cell in enumerate(json.load(open(sys.argv[1], encoding="utf-8"))["cells"]):
    if cell["cell_type"] == "code":
        exec(compile("".join(cell["source"]), f"cell {number}", "exec"), globals())
"""


def test_there_is_a_notebook() -> None:
    assert [notebook.name for notebook in NOTEBOOKS] == ["own_network.ipynb"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_no_output_and_no_machines_path_is_committed(notebook: Path) -> None:
    text = notebook.read_text(encoding="utf-8")
    for cell in json.loads(text)["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
        assert not re.search(r"^\s*[%!]", "".join(cell["source"]), re.MULTILINE)  # a shell's or Jupyter's own
    assert not re.search(r"/(home|root|tmp|Users|work)/|[A-Z]:\\\\", text)


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_runs_from_top_to_bottom(notebook: Path, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", RUNNER, str(notebook)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "test accuracy" in ended.stdout
    assert (tmp_path / "runs" / "notebook" / "summary.json").is_file()
    assert (tmp_path / "my_net.pt").is_file()
