import io

import pytest
from rich.console import Console
from rich.progress import Progress

from fedmef.data.progress import DownloadBar, with_progress


def test_the_bar_follows_what_pooch_tells_it() -> None:
    progress = Progress(console=Console(file=io.StringIO()))
    bar = DownloadBar(progress)
    bar.total = 10
    bar.update(4)
    bar.update(4)
    assert (bar.total, progress.tasks[0].completed) == (10, 8)
    bar.reset()
    bar.update(10)
    bar.close()
    assert progress.finished


def test_an_unknown_length_is_not_a_length_of_0() -> None:
    bar = DownloadBar(Progress(console=Console(file=io.StringIO())))
    bar.total = 0
    assert bar.total is None


def test_items_pass_unchanged_and_quietly_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(with_progress([3, 1, 2], "counting")) == [3, 1, 2]
    assert capsys.readouterr() == ("", "")
