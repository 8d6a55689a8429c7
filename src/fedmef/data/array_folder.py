"""A folder of named arrays and a description, written whole or not at all, read memory-mapped."""

import os
import tokenize
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedmef.data.whole_folder import whole_folder
from fedmef.errors import UserError

DESCRIPTION = "description.json"


def write_folder(folder: Path, arrays: dict[str, Tensor], description: str) -> None:
    """Write arrays and a description to a new folder."""
    if folder.exists():
        raise UserError(f"{folder} exists already: delete it, or write elsewhere")
    with whole_folder(folder) as unfinished:
        for name, array in arrays.items():
            with (unfinished / f"{name}.npy").open("wb") as file:
                np.save(file, np.ascontiguousarray(array.numpy()), allow_pickle=False)
                # Without this a power cut may leave the new name with pages that were never written.
                os.fsync(file.fileno())
        (unfinished / DESCRIPTION).write_text(description, encoding="utf-8")


def read_description(folder: Path) -> str:
    """The description that was written with the arrays."""
    if not folder.is_dir():
        raise UserError(f"no data set in {folder}: run `fedmef data {_dataset_name(folder)}`")
    try:
        return (folder / DESCRIPTION).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise damaged(folder / DESCRIPTION, error) from error


def map_array(folder: Path, name: str) -> Tensor:
    """One array, mapped copy-on-write: all processes share its pages, and torch may call it writable."""
    file = folder / f"{name}.npy"
    try:
        return torch.from_numpy(np.lib.format.open_memmap(file, mode="c"))
    except (OSError, ValueError, TypeError, SyntaxError, tokenize.TokenError) as error:
        raise damaged(file, error) from error


def damaged(file: Path, reason: object) -> UserError:
    """The error for a file that cannot be what was written."""
    folder = file.parent
    return UserError(
        f"{file} is damaged ({' '.join(str(reason).split())}): "
        f"delete the folder {folder} and run `fedmef data {_dataset_name(folder)}`"
    )


def _dataset_name(folder: Path) -> str:
    return folder.name.removesuffix(".prepared")
