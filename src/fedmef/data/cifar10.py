"""CIFAR-10 (Krizhevsky 2009): 50,000 + 10,000 photographs of 32×32 in 10 classes, from its Python pickles."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedmef.data.archive import Archive
from fedmef.data.dataset import Dataset, Split
from fedmef.data.pickled_arrays import read_pickled_arrays
from fedmef.errors import UserError

ARCHIVE = Archive(
    dataset="cifar10",
    url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    md5="c58f30108f718f92721af3b95e74349a",
    folder="cifar-10-batches-py",
)


def read_cifar10(folder: Path, batch_count: int = 10_000) -> Dataset:
    """The data set from the folder of its pickles, each of `batch_count` images."""
    parts = [_read_batch(folder / f"data_batch_{number}", batch_count) for number in range(1, 6)]
    images, labels = zip(*parts, strict=True)
    train = Split(torch.cat(images), torch.cat(labels))
    return Dataset("cifar10", train, Split(*_read_batch(folder / "test_batch", batch_count)), classes=10)


def _read_batch(file: Path, count: int) -> tuple[Tensor, Tensor]:
    remedy = f"delete the folder {file.parent} and run `fedmef data cifar10`"
    content = read_pickled_arrays(file, remedy)
    images, labels = content.get(b"data"), content.get(b"labels")
    if not (isinstance(images, np.ndarray) and images.shape == (count, 3 * 32 * 32)):
        shape = list(images.shape) if isinstance(images, np.ndarray) else type(images).__name__
        raise UserError(f"{file}: 'data' is {shape}, not [{count}, {3 * 32 * 32}]: {remedy}")
    if not (
        isinstance(labels, list) and len(labels) == count and all(label in range(10) for label in labels)
    ):
        raise UserError(f"{file}: 'labels' is not a list of {count} numbers in 0..9: {remedy}")
    return torch.from_numpy(images.reshape(count, 3, 32, 32).copy()), torch.tensor(labels, dtype=torch.int64)
