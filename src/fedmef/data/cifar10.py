"""CIFAR-10 (Krizhevsky 2009): 50,000 + 10,000 photographs of 32×32 in 10 classes, from its Python pickles."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pooch
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


# A batch in another's place is well-formed too, and would put test images into the training data.
PUBLISHED_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}


def read_cifar10(
    folder: Path, batch_count: int = 10_000, published: Mapping[str, str] = PUBLISHED_MD5
) -> Dataset:
    """The data set from the folder of its pickles, each of `batch_count` images and as published."""
    names = [f"data_batch_{number}" for number in range(1, 6)]
    parts = [_read_batch(folder / name, batch_count, published.get(name)) for name in names]
    images, labels = zip(*parts, strict=True)
    test = _read_batch(folder / "test_batch", batch_count, published.get("test_batch"))
    return Dataset("cifar10", Split(torch.cat(images), torch.cat(labels)), Split(*test), classes=10)


def _read_batch(file: Path, count: int, md5: str | None) -> tuple[Tensor, Tensor]:
    remedy = f"delete the folder {file.parent} and run `fedmef data cifar10`"
    content = read_pickled_arrays(file, remedy)
    if md5 is not None and pooch.file_hash(str(file), alg="md5") != md5:
        raise UserError(f"{file} is not the published file (its md5 is not {md5}): {remedy}")
    images, labels = content.get(b"data"), content.get(b"labels")
    if not (isinstance(images, np.ndarray) and images.shape == (count, 3 * 32 * 32)):
        shape = list(images.shape) if isinstance(images, np.ndarray) else type(images).__name__
        raise UserError(f"{file}: 'data' is {shape}, not [{count}, {3 * 32 * 32}]: {remedy}")
    if not (
        isinstance(labels, list) and len(labels) == count and all(label in range(10) for label in labels)
    ):
        raise UserError(f"{file}: 'labels' is not a list of {count} numbers in 0..9: {remedy}")
    return torch.from_numpy(images.reshape(count, 3, 32, 32).copy()), torch.tensor(labels, dtype=torch.int64)
