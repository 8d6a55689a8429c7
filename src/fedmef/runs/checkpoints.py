"""Checkpoints of a run: the last two are kept, and a torn one is noticed by its checksum.

Whatever the moment of a crash, at least one of the two is intact.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmef.errors import FedmefWarning, UserError
from fedmef.runs.reading import container_bytes, read_container
from fedmef.sparsity.arrays import Array
from fedmef.wire.files import write_atomically

CHECKPOINT, CHECKPOINT_BEFORE = "checkpoint.safetensors", "checkpoint-before.safetensors"
MOST_ROUNDS = 10**6  # metrics of so many could not be read


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The arrays after a finished round.

    Attributes:
        header: `next_round`, and whatever else was written with them.
    """

    arrays: dict[str, Array]
    header: dict[str, Any]

    @property
    def next_round(self) -> int:
        """The round to continue with."""
        return int(self.header["next_round"])


def has_checkpoint(folder: Path) -> bool:
    """Whether there is one, intact or not."""
    return any((folder / name).is_file() for name in (CHECKPOINT, CHECKPOINT_BEFORE))


def write_checkpoint(folder: Path, arrays: Mapping[str, Array], header: Mapping[str, Any]) -> None:
    """Write a checkpoint; the last one stays next to it."""
    content = container_bytes(arrays, header, folder / CHECKPOINT)
    write_atomically(folder / CHECKPOINT, content, keep=folder / CHECKPOINT_BEFORE)


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest intact checkpoint, with a warning when that is not the last one; None when there is none."""
    reasons = []
    for name in (CHECKPOINT, CHECKPOINT_BEFORE):
        try:
            checkpoint = _read(folder / name)
        except FileNotFoundError:
            continue
        except UserError as error:
            reasons.append(str(error))
            continue
        if reasons:
            message = f"{reasons[0]}; the one before it is used, after round {checkpoint.next_round}"
            warnings.warn(message, FedmefWarning, stacklevel=2)
        return checkpoint
    if reasons:
        raise UserError("; ".join(reasons))
    return None


def discard_torn(folder: Path) -> None:
    """Put the checkpoint before in the place of a torn last one, so that it is not the next to go."""
    before = folder / CHECKPOINT_BEFORE
    if not before.is_file():
        return
    try:
        _read(folder / CHECKPOINT)
    except (FileNotFoundError, UserError):
        before.replace(folder / CHECKPOINT)


def remove_checkpoints(folder: Path) -> None:
    """A finished run needs none."""
    for name in (CHECKPOINT, CHECKPOINT_BEFORE):
        (folder / name).unlink(missing_ok=True)


def _read(file: Path) -> Checkpoint:
    arrays, header = read_container(file)
    next_round = header.get("next_round")
    if type(next_round) is not int or not 1 <= next_round <= MOST_ROUNDS:
        raise UserError(f"{file} is damaged: it names no round")
    return Checkpoint(arrays, header)
