"""The 1,797 handwritten digits of scikit-learn, 8×8 and grey: real data that needs no download."""

import numpy as np
import numpy.typing as npt
import torch

from fedmef.data.dataset import Dataset, Split
from fedmef.experiment.randomness import numpy_generator

TEST_COUNT = 360
SPLIT_SEED = 0  # fixed: every experiment, whatever its seed, is tested on the same digits


def read_digits() -> Dataset:
    """1,437 digits to train on and 360 to test on, each class in the same proportion."""
    # scikit-learn takes a second to import, and only the digits need it.
    from sklearn.datasets import load_digits  # noqa: PLC0415

    bunch = load_digits()
    images = torch.from_numpy(np.rint(bunch.images * (255 / 16)).astype(np.uint8))[:, None]
    labels = bunch.target.astype(np.int64)
    tested = torch.from_numpy(_tested(labels))
    targets = torch.from_numpy(labels)
    return Dataset(
        name="digits",
        train=Split(images[~tested], targets[~tested]),
        test=Split(images[tested], targets[tested]),
        classes=10,
    )


def _tested(labels: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which samples are for testing: each class is spread evenly over 0..1 at random, and the lowest go."""
    generator = numpy_generator(SPLIT_SEED, "digits split")
    ranks = np.empty(len(labels))
    for label in range(10):
        samples = np.flatnonzero(labels == label)
        ranks[samples] = (generator.permutation(len(samples)) + 0.5) / len(samples)
    tested = np.zeros(len(labels), dtype=np.bool_)
    tested[ranks.argsort(kind="stable")[:TEST_COUNT]] = True
    return tested
