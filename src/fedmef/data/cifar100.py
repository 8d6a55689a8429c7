"""CIFAR-100 (Krizhevsky 2009): 50,000 + 10,000 photographs of 32x32 in 100 classes, from its pickles."""

from collections.abc import Mapping
from pathlib import Path

from fedmef.data.archive import Archive
from fedmef.data.cifar10 import split_of, unpickled
from fedmef.data.dataset import Dataset
from fedmef.data.facts import Facts

FACTS = Facts(shape=(3, 32, 32), classes=100, train=50_000)
ARCHIVE = Archive(
    dataset="cifar100",
    url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
    md5="eb9058c3a382ffc7106e4002c42a8d85",
    folder="cifar-100-python",
)
PUBLISHED_MD5 = {
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "meta": "7973b15100ade9c7d40fb424638fde48",
}


def read_cifar100(folder: Path, published: Mapping[str, str] = PUBLISHED_MD5) -> Dataset:
    """The data set from the folder of its pickles, each as published, with its fine labels."""
    train, test, meta = (unpickled(folder / name, md5, "cifar100") for name, md5 in published.items())
    names = tuple(name.decode() for name in meta[b"fine_label_names"])
    splits = split_of(train, b"fine_labels"), split_of(test, b"fine_labels")
    return Dataset("cifar100", *splits, FACTS.classes, class_names=names)
