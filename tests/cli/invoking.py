"""The command line as a user calls it."""

import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from fedmef.cli import app, progress
from fedmef.runs.signals import SIGNALS
from tests.small import SMALL


class Ended(NamedTuple):
    """How a command ended: its exit code, and what it printed to stdout and stderr."""

    code: int
    printed: str
    errors: str


Invoke = Callable[..., Ended]

# SMALL as options, but for the rounds.
QUICK = [
    word
    for name, value in SMALL.items()
    if name != "rounds"
    for word in (f"--{name.replace('_', '-')}", str(value))
]


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Invoke]:
    """`invoke("run", "--rounds", "1")`."""

    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(progress, "LINE_EVERY", 3600)  # a slow machine says no more than a fast one
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # set by main, and put back

    def call(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["fedmef", *arguments])
        with pytest.raises(SystemExit) as ended:
            app.main()
        captured = capsys.readouterr()
        return Ended(int(ended.value.code or 0), captured.out, captured.err)

    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield call
    for number, handler in before.items():  # a command that was stopped ignores further signals
        signal.signal(number, handler)


def check_mistake(ended: Ended, expected: str) -> None:
    """A user's mistake is one line and exit code 2."""
    assert (ended.code, ended.printed) == (2, "")
    assert ended.errors.startswith("fedmef: ")
    assert ended.errors.count("\n") == 1
    assert expected in ended.errors
