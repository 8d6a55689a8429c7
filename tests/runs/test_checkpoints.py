from pathlib import Path

import numpy as np
import pytest

from fedmef.errors import FedmefWarning, UserError
from fedmef.experiment.settings import Experiment
from fedmef.runs.checkpoints import (
    CHECKPOINT,
    CHECKPOINT_BEFORE,
    Checkpoint,
    discard_torn,
    has_checkpoint,
    read_checkpoint,
    remove_checkpoints,
    write_checkpoint,
)
from fedmef.runs.directory import Run
from fedmef.sparsity.model import State
from tests.runs.written import NETWORK, a_round, a_state


def state(value: float) -> State:
    return {"values": np.full(4, value, dtype=np.float32), "steps": np.array(3)}


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
    assert read(tmp_path).arrays["values"].tolist() == [2.0] * 4


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, state(0.1), {"next_round": 7, "more": [1, "two"]})
    found = read(tmp_path)
    assert found.header == {"next_round": 7, "more": [1, "two"]}
    assert {name: (array.dtype, array.tolist()) for name, array in found.arrays.items()} == {
        name: (array.dtype, array.tolist()) for name, array in state(0.1).items()
    }


def test_a_finished_run_keeps_no_checkpoint(tmp_path: Path) -> None:
    for number in (1, 2):
        assert has_checkpoint(tmp_path) == (number > 1)
        write_checkpoint(tmp_path, state(number), {"next_round": number})
    remove_checkpoints(tmp_path)
    assert not has_checkpoint(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_torn_checkpoint_is_noticed_and_the_one_before_is_used(tmp_path: Path, damage: str) -> None:
    for number in (1, 2):
        write_checkpoint(tmp_path, state(number), {"next_round": number})
    content = bytearray((tmp_path / CHECKPOINT).read_bytes())
    content[-1] ^= 1  # the lowest bit of a number
    torn = {"cut": bytes(content[:-5]), "flipped": bytes(content), "empty": b""}[damage]
    (tmp_path / CHECKPOINT).write_bytes(torn)
    with pytest.warns(FedmefWarning, match="the one before it is used, after round 1"):
        assert read(tmp_path).next_round == 1


def test_two_torn_checkpoints_are_an_error_that_names_both(tmp_path: Path) -> None:
    for name in (CHECKPOINT, CHECKPOINT_BEFORE):
        (tmp_path / name).write_bytes(b"nonsense")
    with pytest.raises(UserError, match=rf"{CHECKPOINT} is damaged.*{CHECKPOINT_BEFORE} is damaged"):
        read_checkpoint(tmp_path)


def test_only_a_torn_checkpoint_makes_way_for_the_one_before(tmp_path: Path) -> None:
    discard_torn(tmp_path)
    for number in (1, 2):
        write_checkpoint(tmp_path, state(number), {"next_round": number})
    discard_torn(tmp_path)
    assert read(tmp_path).next_round == 2
    (tmp_path / CHECKPOINT).write_bytes(b"torn")
    discard_torn(tmp_path)
    assert read(tmp_path).next_round == 1
    assert not (tmp_path / CHECKPOINT_BEFORE).exists()


@pytest.mark.filterwarnings("ignore::fedmef.errors.FedmefWarning")
def test_the_good_checkpoint_survives_the_write_after_a_torn_one(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", Experiment(), NETWORK)
    for number in (1, 2):
        run.log(a_round(number - 1))
        run.write_checkpoint(a_state(number), number)
    (run.path / CHECKPOINT).write_bytes(b"torn")
    found = run.read_checkpoint()
    assert found is not None
    assert found[1] == 1
    assert run.rounds == [a_round(0)]
    run.write_checkpoint(a_state(9), 2)
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


@pytest.mark.parametrize("next_round", [0, -1, "1", 1.5, None])
def test_a_checkpoint_without_a_round_is_damaged(tmp_path: Path, next_round: object) -> None:
    write_checkpoint(tmp_path, state(1), {"next_round": next_round})
    with pytest.raises(UserError, match="names no round"):
        read_checkpoint(tmp_path)
