import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedmef.data.image_files import decode_images


def test_progress_never_goes_where_results_go(
    tmp_path: Path,
    write_image: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_image(tmp_path / "a.png", 4, (1, 2, 3))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    images = decode_images([tmp_path / "a.png"], 4, "PNG", "colours")
    assert images[0, :, 0, 0].tolist() == [1, 2, 3]
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "colours" in printed.err


def test_files_and_pipes_stay_free_of_bars(
    tmp_path: Path, write_image: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    write_image(tmp_path / "a.png", 4, (1, 2, 3))
    decode_images([tmp_path / "a.png"], 4, "PNG", "colours")
    assert capsys.readouterr() == ("", "")
