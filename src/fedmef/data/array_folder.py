"""A folder of named arrays and a description, written completely or not at all, read memory-mapped."""

import os
import tokenize
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedmef.data.atomic_folder import atomic_folder
from fedmef.errors import UserError
from fedmef.sparsity.arrays import Array
from fedmef.wire.files import read_bounded

DESCRIPTION = "description.json"
PREPARED = ".prepared"
LARGEST_DESCRIPTION = 2**24


def write_folder(folder: Path, arrays: Mapping[str, Array], description: str) -> None:
    """Write arrays and a description to a new folder."""
    if folder.exists():
        raise UserError(f"{folder} exists already: delete it, or write elsewhere")
    with atomic_folder(folder) as unfinished:
        for name, array in arrays.items():
            with (unfinished / f"{name}.npy").open("wb") as file:
                np.save(file, np.ascontiguousarray(array), allow_pickle=False)
                # Without this a power cut may leave the new name with pages that were never written.
                os.fsync(file.fileno())
        (unfinished / DESCRIPTION).write_text(description, encoding="utf-8")


def read_description(folder: Path) -> str:
    """The description that was written with the arrays."""
    if not folder.is_dir():
        raise UserError(f"no data set in {folder}: {_remedy(folder)}")
    try:
        return read_bounded(folder / DESCRIPTION, LARGEST_DESCRIPTION).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise damaged(folder / DESCRIPTION, error) from error


def map_array(folder: Path, name: str) -> Array:
    """One array, mapped from its file: all processes share its pages."""
    file = folder / f"{name}.npy"
    try:
        return np.lib.format.open_memmap(file, mode="r")
    except (OSError, ValueError, TypeError, SyntaxError, tokenize.TokenError) as error:
        raise damaged(file, error) from error


def damaged(file: Path, reason: object) -> UserError:
    """The error for a file that cannot be what was written."""
    folder = file if file.is_dir() else file.parent
    delete = f"delete the folder {folder} and " if folder.suffix == PREPARED else ""
    return UserError(f"{file} is damaged ({' '.join(str(reason).split())}): {delete}{_remedy(folder)}")


def _remedy(folder: Path) -> str:
    if folder.suffix == PREPARED:
        return f"run `fedmef data {folder.stem}`"
    return "write it again (Dataset.write)"  # it is the user's own: nothing here can fetch it
