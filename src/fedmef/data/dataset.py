"""A data set: images and labels for training and for testing, in memory or mapped from a folder."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedmef.data.array_folder import DESCRIPTION, damaged, map_array, read_description, write_folder
from fedmef.data.statistics import channel_statistics
from fedmef.errors import UserError
from fedmef.sparsity.arrays import Array, Bytes, Integers

Statistics = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation of each channel
LONGEST_CLASS_NAME = 200
USERS = "train_users"


@dataclass(frozen=True, eq=False)
class Split:
    """Images and their labels, in one order."""

    images: Bytes  # [N, C, H, W]
    labels: Integers  # [N]

    def __post_init__(self) -> None:
        if not (isinstance(self.images, np.ndarray) and isinstance(self.labels, np.ndarray)):
            raise UserError("images and labels must be NumPy arrays: tensor.numpy() makes one of a tensor")
        if self.images.dtype != np.uint8 or self.images.ndim != 4:
            raise UserError(
                f"images must be uint8 [N, C, H, W], not {_kind(self.images)}; "
                "fedmef.data.from_arrays takes others"
            )
        if self.labels.dtype != np.int64 or self.labels.ndim != 1:
            raise UserError(
                f"labels must be int64 [N], not {_kind(self.labels)}; labels.astype('int64') converts them"
            )
        if len(self.images) != len(self.labels):
            raise UserError(f"{len(self.images)} images have {len(self.labels)} labels: give one for each")
        if self.images.size == 0:
            raise UserError(f"images must not be empty, but are {_kind(self.images)}")

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Dataset:
    """What an experiment trains and tests on.

    Attributes:
        known_statistics: mean and standard deviation of each channel, pixels counting from 0 to 1; only saves
            computing them.
        folder: where all of it is mapped from, if `open` did so; what `replace` makes of it has none.
        users: whose each training image is, integers or strings [N], an array or a list;
            `partition = "natural"` makes each of them a device, in sorted order.
        class_names: what people call each class.
    """

    name: str
    train: Split
    test: Split
    classes: int
    known_statistics: Statistics | None = field(default=None, repr=False)
    folder: Path | None = field(default=None, repr=False, init=False)
    users: Array | None = field(default=None, repr=False)
    class_names: tuple[str, ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        train, test = self.train.images.shape[1:], self.test.images.shape[1:]
        if train != test:
            raise UserError(
                f"dataset '{self.name}': training images are {list(train)} but test images {list(test)}: "
                "give both one shape"
            )
        for split in (self.train, self.test):
            lowest, highest = int(split.labels.min()), int(split.labels.max())
            if lowest < 0 or highest >= self.classes:
                raise UserError(
                    f"dataset '{self.name}': labels go from {lowest} to {highest}, "
                    f"but with classes = {self.classes} they must be in 0..{self.classes - 1}"
                )
        if self.users is not None:
            users = self.users
            if isinstance(users, list | tuple):
                users = user_array(users)
                object.__setattr__(self, "users", users)
            self._check_users(users)
        if self.class_names is not None:
            object.__setattr__(self, "class_names", checked_names(self.class_names, self.classes))

    def _check_users(self, users: Array) -> None:
        if not isinstance(users, np.ndarray) or users.dtype.kind not in "iuU" or users.ndim != 1:
            given = _kind(users) if isinstance(users, np.ndarray) else f"a {type(users).__name__}"
            raise UserError(
                f"dataset '{self.name}': users must be integers or strings [N], a list or an array, "
                f"not {given}"
            )
        if len(users) != len(self.train):
            raise UserError(
                f"dataset '{self.name}': {len(self.train)} training images have {len(users)} users: "
                "give one for each"
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""
        channels, height, width = self.train.images.shape[1:]
        return channels, height, width

    @cached_property
    def statistics(self) -> Statistics:
        """Mean and standard deviation of each channel of the training images, pixels counting from 0 to 1."""
        return self.known_statistics or channel_statistics(self.train.images)

    def write(self, folder: Path | str) -> None:
        """Write to a new folder, completely or not at all."""
        mean, std = self.statistics
        description: dict[str, Any] = {"name": self.name, "classes": self.classes, "mean": mean, "std": std}
        if self.class_names is not None:
            description["class_names"] = self.class_names
        arrays: dict[str, Array] = {
            "train_images": self.train.images,
            "train_labels": self.train.labels,
            "test_images": self.test.images,
            "test_labels": self.test.labels,
        }
        if self.users is not None:
            arrays[USERS] = self.users
        write_folder(Path(folder), arrays, json.dumps(description))

    @classmethod
    def open(cls, folder: Path | str) -> Self:
        """Map what `write` wrote. However many processes open it, the machine holds one copy."""
        folder = Path(folder)
        name, classes, statistics, class_names = _read_description(folder)
        train = map_array(folder, "train_images"), map_array(folder, "train_labels")
        test = map_array(folder, "test_images"), map_array(folder, "test_labels")
        users = map_array(folder, USERS) if (folder / f"{USERS}.npy").exists() else None
        try:
            dataset = cls(name, Split(*train), Split(*test), classes, statistics, users, class_names)
        except UserError as error:
            raise damaged(folder, error) from error
        means, deviations = map(len, statistics)
        if not means == deviations == dataset.shape[0]:
            raise damaged(
                folder / DESCRIPTION,
                f"{means} means and {deviations} deviations for {dataset.shape[0]} channels",
            )
        object.__setattr__(dataset, "folder", folder)
        return dataset


def user_array(users: Sequence[Any]) -> Array:
    """Users as an array: integers, or strings. What is neither has another kind of array, and is refused."""
    kinds = {str if isinstance(user, str) else type(user) for user in users}
    return np.array(users) if len(kinds) == 1 else np.array(users, dtype=object)  # 1 must not become "1"


def checked_names(names: Any, classes: int) -> tuple[str, ...]:
    """Names of all classes; raises `UserError` for anything else."""
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise UserError("class_names must be a list of strings, one for each class")
    if len(names) != classes:
        raise UserError(f"class_names has {len(names)} names, but there are {classes} classes: name each")
    if not all(0 < len(name) <= LONGEST_CLASS_NAME for name in names):
        raise UserError(f"class_names: each must have 1 to {LONGEST_CLASS_NAME} characters")
    return tuple(names)


def _read_description(folder: Path) -> tuple[str, int, Statistics, Any]:
    file = folder / DESCRIPTION
    try:
        table = json.loads(read_description(folder))
        name, classes = str(table["name"]), int(table["classes"])
        mean, std = _numbers(table["mean"]), _numbers(table["std"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise damaged(file, error) from error
    if not all(deviation > 0 for deviation in std):
        raise damaged(file, f"standard deviations of {list(std)}")
    return name, classes, (mean, std), table.get("class_names")


def _numbers(values: Any) -> tuple[float, ...]:
    numbers = tuple(float(value) for value in values)
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"{numbers} are not all finite")
    return numbers


def _kind(array: Array) -> str:
    return f"{array.dtype} {list(array.shape)}"
