"""A data set: images and labels for training and for testing, in memory or mapped from a folder."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Self

import torch
from pydantic import BaseModel, Field, FiniteFloat, ValidationError
from torch import Tensor

from fedmef.data.array_folder import DESCRIPTION, damaged, map_array, read_description, write_folder
from fedmef.data.statistics import channel_statistics
from fedmef.errors import UserError


@dataclass(frozen=True, eq=False)
class Split:
    """Images and their labels, in one order."""

    images: Tensor  # uint8 [N, C, H, W]
    labels: Tensor  # int64 [N]

    def __post_init__(self) -> None:
        if not (isinstance(self.images, Tensor) and isinstance(self.labels, Tensor)):
            raise UserError("images and labels must be torch tensors: torch.from_numpy makes one of an array")
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise UserError(f"images must be uint8 [N, C, H, W], not {_kind(self.images)}")
        if self.labels.dtype != torch.int64 or self.labels.ndim != 1:
            raise UserError(f"labels must be int64 [N], not {_kind(self.labels)}")
        if len(self.images) != len(self.labels):
            raise UserError(f"{len(self.images)} images have {len(self.labels)} labels: give one for each")
        if self.images.numel() == 0:
            raise UserError(f"images must not be empty, but are {_kind(self.images)}")

    def __len__(self) -> int:
        return len(self.labels)


class _Description(BaseModel):
    """What a data set's folder says of its arrays."""

    name: str
    classes: int
    mean: list[FiniteFloat]
    std: list[Annotated[FiniteFloat, Field(gt=0)]]


@dataclass(frozen=True, eq=False)
class Dataset:
    """What an experiment trains and tests on.

    `known_statistics` only saves computing them; `folder` is where the arrays are mapped from, if they are.
    """

    name: str
    train: Split
    test: Split
    classes: int
    known_statistics: tuple[Tensor, Tensor] | None = field(default=None, repr=False)
    folder: Path | None = field(default=None, repr=False)

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

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""
        channels, height, width = self.train.images.shape[1:]
        return channels, height, width

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Mean [C] and standard deviation [C] of the training images, whose pixels count from 0 to 1."""
        return self._statistics

    @cached_property
    def _statistics(self) -> tuple[Tensor, Tensor]:
        return self.known_statistics or channel_statistics(self.train.images)

    def write(self, folder: Path) -> None:
        """Write to a new folder, whole or not at all."""
        mean, std = self.statistics()
        description = _Description(name=self.name, classes=self.classes, mean=mean.tolist(), std=std.tolist())
        arrays = {
            "train_images": self.train.images,
            "train_labels": self.train.labels,
            "test_images": self.test.images,
            "test_labels": self.test.labels,
        }
        write_folder(folder, arrays, description.model_dump_json())

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Map what `write` wrote. However many processes open it, the machine holds one copy."""
        file = folder / DESCRIPTION
        try:
            description = _Description.model_validate_json(read_description(folder))
        except ValidationError as error:
            raise damaged(file, error.errors()[0]["msg"]) from error
        train = map_array(folder, "train_images"), map_array(folder, "train_labels")
        test = map_array(folder, "test_images"), map_array(folder, "test_labels")
        mean, std = torch.tensor(description.mean), torch.tensor(description.std)
        try:
            dataset = cls(
                description.name, Split(*train), Split(*test), description.classes, (mean, std), folder
            )
        except UserError as error:
            raise damaged(file, error) from error
        if not len(mean) == len(std) == dataset.shape[0]:
            raise damaged(
                file, f"{len(mean)} means and {len(std)} deviations for {dataset.shape[0]} channels"
            )
        return dataset


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
