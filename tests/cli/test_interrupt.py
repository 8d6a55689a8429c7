"""Ctrl-C at any moment: a line, or silence, but no traceback, and nothing written."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# Presses Ctrl-C when a module is looked for, then runs the command.
PRESSED_AT = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's & ignores it
sys.meta_path.insert(0, Finder())
sys.argv = ["fedmef", *{arguments!r}]
from fedmef.__main__ import command
command()
"""
RUN = ("run", "--rounds", "3", "--out", "run")
COST = ("cost", "--method", "fedmef")
PLAN = ("plan", "--device-memory", "64MB")


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        *((module, ("--help",)) for module in ("fedmef.errors", "typer")),
        *((module, RUN) for module in ("fedmef.cli.run", "numpy", "torch.nn")),
        *((module, COST) for module in ("fedmef.cli.cost", "fedmef.costs.noise")),
        *((module, PLAN) for module in ("fedmef.costs.noise",)),
        *((module, ("report", ".")) for module in ("matplotlib",)),
    ],
)
def test_ctrl_c_while_something_is_imported_is_no_traceback(
    module: str, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    program = PRESSED_AT.format(module=module, arguments=arguments)
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert ended.returncode in {-signal.SIGINT, 130}, ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.splitlines()) <= 1
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [RUN, COST, PLAN, ("report", ".")], ids=lambda given: str(given[0]))
def test_ctrl_c_in_the_first_seconds_is_no_traceback_of_ours(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    """Before a line of ours ran, Python itself may show one, of its own files alone."""
    for seconds in (0.1, 0.3, 0.6, 1, 2, 3):
        process = subprocess.Popen(
            [sys.executable, "-m", "fedmef", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()
        assert "Traceback" not in said or "site-packages" not in said.partition("Traceback")[2], said
        assert process.returncode != 1, said
