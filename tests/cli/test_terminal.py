"""Nothing from outside commands the terminal: escape sequences and line ends arrive as text."""

import warnings
from pathlib import Path

import pytest
from rich.console import Console

from fedmef.cli.progress import RunProgress
from fedmef.cli.tables import fitted_table
from fedmef.errors import FedmefError, FedmefWarning, UserError, printable
from fedmef.runs.directory import Run
from tests.cli.invoking import Invoke
from tests.small import small, write_run

EVIL = "\x1b]0;owned\x07\x1b[2J\r\nfedmef: all is well\u202e\x9b31m"


def is_harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.replace("\N{NO-BREAK SPACE}", " ").split("\n"))


def test_text_from_outside_becomes_one_line_of_text() -> None:
    assert (
        printable("ResNet18 – ε = 1, ’yes’\N{NO-BREAK SPACE}") == "ResNet18 – ε = 1, ’yes’\N{NO-BREAK SPACE}"
    )
    assert printable(EVIL) == (r"\x1b]0;owned\x07\x1b[2J\r\nfedmef: all is well\u202e\x9b31m")
    assert printable("\ud800").isprintable()


def test_errors_and_warnings_are_harmless_wherever_they_are_printed() -> None:
    for kind in (FedmefError, UserError, FedmefWarning):
        assert str(kind(EVIL)) == printable(EVIL)


def test_names_of_directories_are_harmless(tmp_path: Path, invoke: Invoke) -> None:
    evil = tmp_path / EVIL.replace("/", "")
    evil.mkdir()
    for command in (["report"], ["evaluate"], ["run", "--resume"], ["run", "--out"]):
        (evil / "mine").touch()
        ended = invoke(*command, str(evil))
        assert ended.code == 2
        assert "owned" in ended.errors
        assert is_harmless(ended.printed + ended.errors)
        assert ended.errors.count("\n") == 1


def test_what_a_run_says_is_harmless(tmp_path: Path, invoke: Invoke) -> None:
    run = write_run(tmp_path / "run", small(), [0.5], backend_details=EVIL, problem=EVIL)
    ended = invoke("run", "--resume", str(run.path))  # finished: it is printed as it is
    assert ended.code == 0
    assert "owned" in ended.printed
    assert is_harmless(ended.printed)
    (run.path / "config.toml").write_text('dataset = "\\u001b[2J\\n[red]x[/red]"\n')
    for command in ("report", "evaluate"):
        ended = invoke(command, str(run.path))
        assert ended.code == 2
        assert is_harmless(ended.errors)


def test_debugging_shows_where_and_is_harmless_too(tmp_path: Path, invoke: Invoke) -> None:
    ended = invoke("evaluate", str(tmp_path / EVIL), "--debug")
    assert "Traceback" in ended.errors
    assert is_harmless(ended.errors)


def test_warnings_of_a_command_are_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    from fedmef.cli.app import _show_warning

    with warnings.catch_warnings(record=True):
        _show_warning(EVIL, UserWarning, "file", 1)
    assert is_harmless(capsys.readouterr().err)


def test_tables_and_progress_take_names_as_text(tmp_path: Path) -> None:
    console = Console(width=200, force_terminal=True, color_system=None, legacy_windows=False)
    with console.capture() as shown:
        console.print(fitted_table({"method": [f"[bold]{EVIL}"]}, 200, dispensable=()))
    assert "[bold]" in shown.get()
    assert is_harmless(shown.get())
    run = Run(tmp_path, small(f"[/nothing]{EVIL}"))
    with RunProgress(Console(width=200, force_terminal=False)) as progress:
        progress.run_begins(run)
        assert is_harmless(progress._bar.tasks[0].description)
