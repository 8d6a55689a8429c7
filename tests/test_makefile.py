"""What `make` would do in a fresh clone, and in one that is set up."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = ("Makefile", "pyproject.toml", "constraints.txt", "CMakeLists.txt")

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone without an environment."""
    for name in FILES:
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def commands(clone: Path, target: str) -> str:
    """What a target would run."""
    asked = ["make", "--dry-run", target]
    return subprocess.run(asked, cwd=clone, capture_output=True, text=True, check=True).stdout


def test_the_demo_installs_no_developers_tools(clone: Path) -> None:
    said = commands(clone, "demo")
    assert "'fedmef[train,native]'" in said
    assert "fedmef[dev]" not in said
    assert "fedmef run configs/demo.toml" in said


@pytest.mark.parametrize("target", ["test", "test-slow", "lint", "bench", "docs", "wheels", "deploy-demo"])
def test_other_targets_install_them_too_and_once(clone: Path, target: str) -> None:
    said = commands(clone, target)
    assert said.index("fedmef[train,native]") < said.index("fedmef[dev]")
    assert said.count("fedmef[dev]") == 1
    (clone / ".venv").mkdir()
    for stamp in ("ready", "dev"):
        (clone / ".venv" / f".{stamp}").touch()
    assert "pip" not in commands(clone, target)
