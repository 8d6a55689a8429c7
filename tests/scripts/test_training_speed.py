"""What `scripts/training_speed.py` trains, and what it says of a mistake."""

import sys
from pathlib import Path

import pytest

from fedmef.data import SyntheticImages
from fedmef.experiment.settings import make_experiment
from scripts import training_speed
from tests.small import small


def complain(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(sys, "argv", ["training_speed.py", *arguments])
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


def test_a_row_learns_and_always_the_same() -> None:
    data = SyntheticImages((1, 8, 8), train=200, test=100).make()
    experiment = small("fedavg", width=8, learning_rate=0.3)
    guessing, learnt, again = (training_speed.train(experiment, data, steps) for steps in (1, 30, 30))
    assert learnt == again
    assert learnt > guessing + 0.2


def test_every_row_is_a_valid_experiment() -> None:
    for row in training_speed.ROWS.values():
        make_experiment({**training_speed.COMMON, **row})
