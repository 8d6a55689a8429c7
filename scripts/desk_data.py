"""Data sets of the desk runs that are not built in: CIFAR-100, and training images held out for tuning.

    FEDMEF_DATA=DIR PYTHONPATH=scripts fedmef run --dataset desk_data:cifar10_held_out ...

CIFAR-100 is read from `DIR/cifar100/{train,test}_{images,labels}.npy`: uint8 [n, 3, 32, 32] and int64 [n].
"""

import numpy as np

from fedmef.data import Dataset, Split
from fedmef.data.load import default_data_dir, load_dataset

HELD_OUT = 5000  # of the 50,000 training images of either


def cifar100() -> Dataset:
    """CIFAR-100 with its hundred fine classes."""
    folder = default_data_dir() / "cifar100"
    train, test = (
        Split(np.load(folder / f"{part}_images.npy", mmap_mode="r"), np.load(folder / f"{part}_labels.npy"))
        for part in ("train", "test")
    )
    return Dataset("cifar100", train, test, classes=100)


def cifar100_held_out() -> Dataset:
    """CIFAR-100 without its test images."""
    return hold_out(cifar100())


def cifar10_held_out() -> Dataset:
    """CIFAR-10 without its test images."""
    return hold_out(load_dataset("cifar10"))


def hold_out(dataset: Dataset) -> Dataset:
    """The training images alone: the same few of them, drawn once, stand in for the test images."""
    order = np.random.default_rng(0).permutation(len(dataset.train.labels))
    validation, train = (
        Split(dataset.train.images[np.sort(chosen)], dataset.train.labels[np.sort(chosen)])
        for chosen in (order[:HELD_OUT], order[HELD_OUT:])
    )
    return Dataset(f"{dataset.name}_held_out", train, validation, dataset.classes)
