"""fedmef without its extra: nothing of Flower is imported, and asking for it says what to install."""

import subprocess
import sys
from pathlib import Path

import pytest

import fedmef
from fedmef.errors import UserError


def test_the_core_imports_no_flower() -> None:
    code = (
        "import sys, fedmef.cli.app\n"
        "sys.exit(any(name.split('.')[0] in ('flwr', 'ray') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_engine_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("fedmef.federation.engines.flower")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flwr", None)
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    experiment = fedmef.Experiment(width=4, rounds=1, engine="flower")
    with pytest.raises(UserError, match=r"engine = 'flower': .* pip install 'fedmef\[flower\]'"):
        fedmef.run(experiment, tmp_path / "run")
    assert not (tmp_path / "run").exists()
