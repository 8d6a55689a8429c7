"""Code that a run's directory names is run by consent only: a directory may be anybody's."""

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import fedmef
from fedmef.costs import device_process
from fedmef.costs.tensors import TensorCost
from fedmef.errors import UserError
from fedmef.experiment.settings import Experiment
from fedmef.federation.api import evaluate_run
from tests.cli.invoking import Invoke, check_mistake, invoke
from tests.costs.formula import process
from tests.federation.small import TINY, digest, interrupted_after
from tests.small import small, write_run

__all__ = ["invoke"]

TRAP = """
from pathlib import Path
from typing import Any
Path(__file__).with_name("sprung").touch()
"""


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is there once the module `trap` was imported."""
    (tmp_path / "trap.py").write_text(TRAP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "trap", raising=False)
    return tmp_path / "sprung"


def trapped(field: str) -> str:
    return "mine=trap:anything" if field == "metrics" else "trap:anything"


def name_code(run: Path, field: str, value: str) -> None:
    lines = (run / "config.toml").read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith(f"{field} =")]
    (run / "config.toml").write_text("".join([*kept, f'{field} = "{value}"\n']))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fedmef.run(Experiment(**TINY), tmp_path_factory.mktemp("runs") / "run").path


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "cut"
    with pytest.raises(KeyboardInterrupt):
        fedmef.run(Experiment(**{**TINY, "rounds": 2}), path, callbacks=[interrupted_after(1)])
    return path


@pytest.mark.parametrize("field", ["dataset", "model", "method", "loss", "metrics"])
def test_reading_a_run_imports_nothing_that_it_names(
    tmp_path: Path, trap: Path, finished: Path, cut: Path, field: str, invoke: Invoke
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    shutil.copytree(cut, tmp_path / "cut")
    name_code(tmp_path / "run", field, trapped(field))
    name_code(tmp_path / "cut", field, trapped(field))
    if field in ("dataset", "metrics"):
        message = rf"config.toml names code that this would run: {field} = '{trapped(field)}'; .*--allow-code"
        with pytest.raises(UserError, match=message):
            evaluate_run(fedmef.Run.open(tmp_path / "run"))
        check_mistake(invoke("evaluate", "run"), "--allow-code")
    else:  # neither is needed: the network is data
        assert evaluate_run(fedmef.Run.open(tmp_path / "run"))
        assert invoke("evaluate", "run").code == 0
    fedmef.load(tmp_path / "run")
    if field != "model":
        with pytest.raises(UserError, match=rf"names code that this would run: {field} = '{trapped(field)}'"):
            fedmef.resume(tmp_path / "cut")
        check_mistake(invoke("run", "--resume", "cut"), "--allow-code")
    assert fedmef.Run.open(tmp_path / "run").how_to_resume.endswith("run --allow-code' continues it")
    assert not trap.exists()


@pytest.mark.parametrize("field", ["dataset", "model", "method", "loss", "metrics"])
def test_a_report_imports_nothing_that_a_run_names(
    tmp_path: Path, trap: Path, field: str, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_process, "_once", lambda *_: process(40e6))  # measurements take long
    monkeypatch.setattr("fedmef.report.groups.measure_tensors", lambda *_: TensorCost(1, 1, 1, 1))
    monkeypatch.setattr("fedmef.report.writing.draw_all", lambda groups: [])
    settings: dict[str, Any] = {field: trapped(field), "width": None}
    write_run(tmp_path / "run", small(**settings), [0.5])
    ended = invoke("report", "run")
    assert ended.code == 0, ended.errors
    assert not trap.exists()
    if field in ("method", "loss"):  # a network is measured from its description
        page = (tmp_path / "report" / "report.html").read_text()
        assert "a report runs no code that a run names" in page


def test_consent_is_an_option_or_the_same_name_from_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: Path, finished: Path, invoke: Invoke
) -> None:
    parts = """
from fedmef.data.synthetic import SyntheticImages
from fedmef.methods.fedmef import FedMef as Mine
def images():
    return SyntheticImages(shape=(3, 8, 8), train=160, test=40, seed=0).make()
"""
    (tmp_path / "my_parts.py").write_text(parts)
    monkeypatch.chdir(tmp_path)
    expected = fedmef.run(Experiment(**{**TINY, "rounds": 2}), tmp_path / "whole")
    ways = (["--allow-code"], ["--method", "my_parts:Mine", "--dataset", "my_parts:images"])
    for number, way in enumerate(ways):
        shutil.copytree(cut, f"cut{number}")
        for field, value in (("method", "my_parts:Mine"), ("dataset", "my_parts:images")):
            name_code(Path(f"cut{number}"), field, value)
        assert invoke("run", "--resume", f"cut{number}").code == 2
        ended = invoke("run", "--resume", f"cut{number}", *way)
        assert ended.code == 0, ended.errors
        assert digest(Path(f"cut{number}")) == digest(expected.path)
    assert invoke("evaluate", "cut0").code == 2
    assert invoke("evaluate", "cut0", "--allow-code").code == 0
    assert invoke("run", "cut0/config.toml", "--out", "again").code == 0  # a file that the user names
