"""CIFAR-10 (Krizhevsky 2009): 50,000 + 10,000 photographs of 32x32 in 10 classes, from its Python pickles."""

import hashlib
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedmef.data.archive import Archive
from fedmef.data.dataset import Dataset, Split
from fedmef.data.facts import Facts
from fedmef.errors import UserError

FACTS = Facts(shape=(3, 32, 32), classes=10, train=50_000)
ARCHIVE = Archive(
    dataset="cifar10",
    url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    md5="c58f30108f718f92721af3b95e74349a",
    folder="cifar-10-batches-py",
)
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
# Checked before anything is unpickled: a pickle can run code. A batch in another's place would be well-formed
# too, and put test images into the training data.
PUBLISHED_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}


def read_cifar10(folder: Path, published: Mapping[str, str] = PUBLISHED_MD5) -> Dataset:
    """The data set from the folder of its pickles, each as published."""
    *train, test = (_read_batch(folder / name, md5) for name, md5 in published.items())
    images, labels = (
        np.concatenate([getattr(part, name) for part in train]) for name in ("images", "labels")
    )
    return Dataset("cifar10", Split(images, labels), test, FACTS.classes, class_names=CLASSES)


def _read_batch(file: Path, md5: str) -> Split:
    return split_of(unpickled(file, md5, "cifar10"), b"labels")


def split_of(batch: Any, labels: bytes) -> Split:
    """The images of a batch, and its labels of this name."""
    images = np.ascontiguousarray(batch[b"data"]).reshape(-1, *FACTS.shape)
    return Split(images, np.array(batch[labels], dtype=np.int64))


def unpickled(file: Path, md5: str, dataset: str) -> Any:
    """What a published pickle holds; any other file is never unpickled."""
    remedy = f"delete the folder {file.parent} and run `fedmef data {dataset}`"
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror}): {remedy}") from None
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
        raise UserError(f"{file} is not the published file (its md5 is not {md5}): {remedy}")
    return pickle.loads(content, encoding="bytes")
