"""`fedmef flower new`: what it writes.

That the app runs on a fleet is in tests/federation/engines/flower/test_deployment.py, with the installed
packages. Its README in a fresh environment, where pip installs what it needs, has no test.
"""

import tomllib
from pathlib import Path

import pytest

from fedmef.cli.flower import write_app
from fedmef.errors import UserError
from fedmef.experiment.settings import Experiment
from tests.cli.invoking import Invoke, check_mistake


def test_the_app_is_named_after_its_directory(tmp_path: Path) -> None:
    assert write_app(tmp_path / "My-app") == "my_app"
    project = tomllib.loads((tmp_path / "My-app" / "pyproject.toml").read_text())
    assert project["project"]["name"] == "my-app"
    assert project["tool"]["flwr"]["app"]["components"]["serverapp"] == "my_app.server_app:app"
    written = {path.name for path in (tmp_path / "My-app").rglob("*") if path.is_file()}
    modules = {"__init__.py", "model.py", "data.py", "server_app.py", "client_app.py"}
    assert written == modules | {
        "README.md",
        "pyproject.toml",
        "environment.sh",
        ".gitignore",
        "config.toml",
    }
    connections = tomllib.loads((tmp_path / "My-app" / ".flwr" / "config.toml").read_text())["superlink"]
    assert connections["fleet"]["root-certificates"] == str(tmp_path / "My-app" / "keys" / "ca.crt")


def test_its_settings_are_those_of_an_experiment(tmp_path: Path) -> None:
    write_app(tmp_path / "app")
    config = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    settings = {name.replace("-", "_") for name in config} - {"out", "resume", "patience", "bind_devices"}
    assert settings <= Experiment.model_fields.keys()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(UserError, match="is there already"):
        write_app(tmp_path)


def test_a_name_that_cannot_be_a_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="DIR = '1st'"):
        write_app(tmp_path / "1st")


def test_the_gate_names_a_file_that_is_missing(tmp_path: Path, invoke: Invoke) -> None:
    files = [f"--ssl-{name}={tmp_path / name}" for name in ("ca-certfile", "certfile", "keyfile")]
    ended = invoke("flower", "gate", "--host", "127.0.0.1", *files)
    check_mistake(ended, f"--ssl-ca-certfile: there is no file {tmp_path / 'ca-certfile'}")
