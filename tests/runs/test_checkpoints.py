from pathlib import Path

import pytest
import torch

from fedmef.errors import FedmefWarning, UserError
from fedmef.experiment.settings import Experiment
from fedmef.runs.checkpoints import (
    CHECKPOINT,
    CHECKPOINT_BEFORE,
    Checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from fedmef.runs.directory import Run


def state(value: float) -> dict[str, torch.Tensor]:
    return {"values": torch.full((4,), value), "steps": torch.tensor(3)}


def read(folder: Path) -> Checkpoint:
    checkpoint = read_checkpoint(folder)
    assert checkpoint is not None
    return checkpoint


def test_the_last_two_checkpoints_are_kept(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path) is None
    for number in (1, 2, 3):
        write_checkpoint(tmp_path, state(number), {"next_round": number})
    assert sorted(path.name for path in tmp_path.iterdir()) == [CHECKPOINT_BEFORE, CHECKPOINT]
    assert read(tmp_path).next_round == 3
    (tmp_path / CHECKPOINT).unlink()  # killed between two renames
    assert read(tmp_path).next_round == 2
    assert read(tmp_path).state["values"].tolist() == [2.0] * 4


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_torn_checkpoint_is_noticed_and_the_one_before_is_used(tmp_path: Path, damage: str) -> None:
    for number in (1, 2):
        write_checkpoint(tmp_path, state(number), {"next_round": number})
    content = bytearray((tmp_path / CHECKPOINT).read_bytes())
    content[-1] ^= 1  # the lowest bit of a mantissa
    torn = {"cut": bytes(content[:-5]), "flipped": bytes(content), "empty": b""}[damage]
    (tmp_path / CHECKPOINT).write_bytes(torn)
    with pytest.warns(FedmefWarning, match="the one before it is used, after round 1"):
        assert read(tmp_path).next_round == 1


def test_two_torn_checkpoints_are_an_error_that_names_both(tmp_path: Path) -> None:
    for name in (CHECKPOINT, CHECKPOINT_BEFORE):
        (tmp_path / name).write_bytes(b"nonsense")
    with pytest.raises(UserError, match=rf"{CHECKPOINT} is damaged.*{CHECKPOINT_BEFORE} is damaged"):
        read_checkpoint(tmp_path)


@pytest.mark.filterwarnings("ignore::fedmef.errors.FedmefWarning")
def test_the_good_checkpoint_survives_the_write_after_a_torn_one(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", Experiment())
    for number in (1, 2):
        run.log({"round": number - 1})
        run.write_checkpoint(state(number), number)
    (run.path / CHECKPOINT).write_bytes(b"torn")
    found = run.read_checkpoint()
    assert found is not None
    assert found[1] == 1
    assert run.metrics == [{"round": 0}]
    run.write_checkpoint(state(9), 2)
    (run.path / CHECKPOINT).unlink()
    assert read(run.path).next_round == 1


def test_no_changed_byte_of_a_checkpoint_goes_unnoticed(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, state(1), {"next_round": 1})
    content = (tmp_path / CHECKPOINT).read_bytes()
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 0x10
        (tmp_path / CHECKPOINT).write_bytes(damaged)
        with pytest.raises(UserError, match="damaged"):
            read_checkpoint(tmp_path)


def test_a_checkpoint_without_a_round_is_damaged(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, state(1), {"next_round": 0})
    with pytest.raises(UserError, match="names no round"):
        read_checkpoint(tmp_path)
