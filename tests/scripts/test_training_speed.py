"""What `scripts/training_speed.py` says of a mistake."""

import sys
from pathlib import Path

import pytest

from scripts import training_speed


def complain(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(sys, "argv", ["training_speed.py", *arguments])
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)  # other tests have theirs
    with pytest.raises(SystemExit) as ended:
        training_speed.main()
    return ended.value.code


def test_rows_that_are_not_there_are_an_error_that_names_those_that_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert complain(["--rows", "nosuch"], monkeypatch) == 2
    errors = capsys.readouterr().err
    assert "--rows nosuch" in errors
    assert all(name in errors for name in training_speed.ROWS)


def test_data_that_cannot_be_read_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in ["batches.meta", "test_batch", *(f"data_batch_{number}" for number in range(1, 6))]:
        (folder / name).write_bytes(b"nonsense")
    said = str(complain(["--data-dir", str(tmp_path)], monkeypatch))
    assert said.startswith("training_speed.py: ")
    assert "cifar-10-batches-py" in said
    assert said.count("\n") == 0
