"""FEMNIST (LEAF, Caldas et al. 2018): grey letters and digits of 28x28 in 62 classes, and who wrote each.

LEAF makes its files from NIST's and publishes none, so nothing is downloaded: `train` and `test` hold JSON
files with `users` and, for each, `x` (rows of 784 numbers from 0 to 1) and `y`. The writers of the training
images are the users of `partition = "natural"`.
"""

import json
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedmef.data.archive import Local
from fedmef.data.dataset import Dataset, Split
from fedmef.data.facts import Facts
from fedmef.errors import UserError
from fedmef.sparsity.arrays import Array, Bytes, Integers
from fedmef.wire.files import read_bounded

FACTS: Facts | None = None  # how many images there are, LEAF's options decide
ARCHIVE = Local(
    dataset="femnist",
    folder="femnist",
    remedy="make it with LEAF (github.com/TalwalkarLab/leaf, data/femnist/preprocess.sh) and put its folders "
    "data/train and data/test there, as train and test",
)
CLASSES = (*string.digits, *string.ascii_uppercase, *string.ascii_lowercase)
PIXELS = 28 * 28
LARGEST = 2**29  # bytes of a file; LEAF's have 100 writers and some 200 MB
LONGEST_NAME = 100


def read_femnist(folder: Path) -> Dataset:
    """The data set from LEAF's folders `train` and `test`."""
    (train, users), (test, _) = _read(folder / "train"), _read(folder / "test")
    return Dataset("femnist", train, test, len(CLASSES), users=users, class_names=CLASSES)


def _read(folder: Path) -> tuple[Split, Array]:
    """The images of all files, and who wrote each."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise UserError(f"{folder} has no *.json file: {ARCHIVE.remedy}")
    found = [written for file in files for written in _writers(file)]
    if not found:
        raise _damaged(files[0], "there is no image in any file")
    names, images, labels = zip(*found, strict=True)
    return Split(np.concatenate(images), np.concatenate(labels)), np.repeat(names, [*map(len, labels)])


def _writers(file: Path) -> Iterator[tuple[str, Bytes, Integers]]:
    """Each writer's name, images [N, 1, 28, 28] and labels [N]; those without images are left out."""
    try:
        table = json.loads(read_bounded(file, LARGEST))
        names, samples = table["users"], table["user_data"]
        found = [(name, samples[name]["x"], samples[name]["y"]) for name in names]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise _damaged(file, f"{type(error).__name__}: {error}") from None
    if len(set(map(str, names))) < len(found):  # and images that are read once take less than their file
        raise _damaged(file, "it names a writer twice")
    for name, rows, labels in found:
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
            raise _damaged(file, f"a writer's name must have 1 to {LONGEST_NAME} characters")
        if rows or labels:
            yield name, _images(file, name, rows), _labels(file, name, labels, len(rows))


def _images(file: Path, writer: str, rows: Any) -> Bytes:
    try:
        values = np.asarray(rows, dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        values = np.empty(0)
    if values.ndim != 2 or values.shape[1] != PIXELS or not ((values >= 0) & (values <= 1)).all():
        raise _damaged(file, f"x of '{writer}' must be rows of {PIXELS} numbers from 0 to 1")
    return np.rint(values * 255).astype(np.uint8).reshape(-1, 1, 28, 28)


def _labels(file: Path, writer: str, labels: Any, count: int) -> Integers:
    good = isinstance(labels, list) and all(type(label) is int and 0 <= label < 62 for label in labels)
    if not good or len(labels) != count:
        raise _damaged(file, f"y of '{writer}' must be a class from 0 to 61 for each of its {count} images")
    return np.array(labels, dtype=np.int64)


def _damaged(file: Path, reason: str) -> UserError:
    return UserError(f"{file} is no file of LEAF's FEMNIST, or damaged ({reason[:300]}): make it again")
