"""Help as plain text, which a narrow terminal cuts nowhere."""

from importlib import import_module

import pytest
import typer

from tests.cli.invoking import Invoke


@pytest.mark.parametrize("columns", ["40", "60", "80", "200"])
@pytest.mark.parametrize("command", ["run", "compare", "reproduce", "cost", "plan"])
def test_help_cuts_no_name_however_narrow_the_terminal(
    command: str, columns: str, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    printed = invoke(command, "--help").printed
    shown = typer.main.get_command(import_module(f"fedmef.cli.{command}").app)
    names = {name for option in shown.params for name in (*option.opts, *option.secondary_opts)}
    assert [name for name in names if name.startswith("--") and name not in printed] == []
    assert "…" not in printed


@pytest.mark.parametrize("command", ["run", "compare", "cost", "plan"])
def test_help_begins_with_what_everybody_needs_and_ends_with_injected_faults(
    command: str, invoke: Invoke
) -> None:
    lines = invoke(command, "--help").printed.splitlines()
    panels = [line.rstrip(":") for line in lines if line.endswith(":") and line[0] not in " -"]
    assert panels[-1] == "Injected faults"
    first = [panel for panel in panels if panel not in ("Arguments", "Options")]
    assert first[:4] == ["What to train", "Federation", "Local training", "Sparsity"]


def test_help_groups_options_and_keeps_square_brackets(invoke: Invoke) -> None:
    printed = invoke("run", "--help").printed
    assert "\nFederation:\n  --devices N" in printed
    assert "[[fault]] tables" in printed
    assert "(default )" not in printed
    printed = invoke("reproduce", "--help").printed
    assert "  [default: desk]" in printed
    assert "auto, inline, processes or flower" in printed
