"""The commands, which are imported when they are used, and what becomes of errors."""

import json
import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path

import pytest
import typer

import fedmef
from fedmef.cli.app import COMMANDS
from tests.cli.invoking import Invoke, check_mistake

HEAVY = ("numpy", "pydantic", "torch", "rich", "matplotlib")


def loaded_by(code: str) -> list[str]:
    """Which heavy packages a fresh interpreter loads for this."""
    show = f"import json, sys; print(json.dumps([name for name in {HEAVY} if name in sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{show}"], capture_output=True, text=True, check=True
    )
    names: list[str] = json.loads(done.stdout.splitlines()[-1])
    return names


def test_what_loads_numpy_would_be_noticed() -> None:
    assert loaded_by("import fedmef.sparsity.masks") == ["numpy"]


def test_help_loads_nothing_heavy() -> None:
    assert loaded_by("import fedmef.cli.app") == []
    help_ends = "try:\n    fedmef.cli.app.main()\nexcept SystemExit as ended:\n    assert not ended.code"
    assert loaded_by(f"import fedmef.cli.app, sys\nsys.argv = ['fedmef', '--help']\n{help_ends}") == []


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_names_every_command(arguments: list[str], invoke: Invoke) -> None:
    code, printed, _ = invoke(*arguments)
    assert code == 0
    listed = printed.partition("Commands:\n")[2]
    assert [line.split()[0] for line in listed.splitlines() if line[2] != " "] == list(COMMANDS)
    assert "..." not in listed


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_the_help_of_every_command_is_success(command: str, flag: str, invoke: Invoke) -> None:
    code, printed, errors = invoke(command, flag)
    assert (code, errors) == (0, "")
    assert printed.startswith(f"Usage: fedmef {command} ")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_list_of_commands_says_what_the_first_line_of_each_ones_help_does(command: str) -> None:
    own = typer.main.get_command(import_module(f"fedmef.cli.{command}").app)
    assert (own.help or "").splitlines()[0] == COMMANDS[command]


def test_every_module_that_is_a_command_is_in_the_list() -> None:
    folder = Path(fedmef.__file__).parent / "cli"
    with_app = [file.stem for file in folder.glob("*.py") if "\napp = " in file.read_text()]
    assert sorted(with_app) == sorted(["app", *COMMANDS])


def test_the_version_is_the_packages(invoke: Invoke) -> None:
    assert invoke("--version") == (0, f"{fedmef.__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", "--no-such-option"], "--no-such-option"),
        (["evaluate"], "Missing argument 'RUN'"),
        (["--frobnicate"], "--frobnicate"),
    ],
)
def test_a_command_line_that_cannot_be_read_is_a_users_mistake(
    arguments: list[str], expected: str, invoke: Invoke
) -> None:
    check_mistake(ended := invoke(*arguments), expected)
    assert ended.errors.endswith("(see --help)\n")


def test_an_unknown_command_comes_with_all_there_are(invoke: Invoke) -> None:
    check_mistake(invoke("frobnicate"), f"unknown command 'frobnicate': known: {', '.join(sorted(COMMANDS))}")


@pytest.mark.parametrize("place", [0, 1, 3])
def test_debug_shows_where_an_error_comes_from_wherever_it_stands(place: int, invoke: Invoke) -> None:
    arguments = ["run", "--alpha", "0"]
    assert "Traceback" not in invoke(*arguments).errors
    arguments.insert(place, "--debug")
    code, _, errors = invoke(*arguments)
    assert code == 2
    assert "Traceback" in errors
    assert errors.splitlines()[-1].startswith("fedmef: alpha = '0'")


def test_whatever_else_is_raised_is_one_line_and_exit_code_one(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the disk is on fire")

    monkeypatch.setattr("fedmef.cli.data.load_dataset", fail)
    expected = "fedmef: RuntimeError: the disk is on fire (--debug shows where)\n"
    assert invoke("data", "digits") == (1, "", expected)


def test_control_c_is_one_line(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedmef.cli.data.load_dataset", interrupted)
    assert invoke("data", "digits") == (130, "", "fedmef: stopped\n")


def test_a_warning_is_one_line_without_a_place(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def warn(*_: object, **__: object) -> None:
        warnings.warn("the disk is warm", UserWarning, stacklevel=2)
        raise fedmef.UserError("and now it burns")

    monkeypatch.setattr("fedmef.cli.data.load_dataset", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        ended = invoke("data", "digits")
    assert ended == (2, "", "fedmef: the disk is warm\nfedmef: and now it burns\n")
