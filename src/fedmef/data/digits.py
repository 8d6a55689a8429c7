"""1,797 handwritten digits, 8x8 and grey: real data that needs no download.

`digits.npz` is the test part of "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak 1998, UCI
Machine Learning Repository, https://doi.org/10.24432/C50P49, CC BY 4.0), as scikit-learn has it too.
"""

from importlib.resources import files

import numpy as np

from fedmef.data.dataset import Dataset, Split
from fedmef.experiment.randomness import generator_for
from fedmef.sparsity.arrays import Bits, Integers

TEST_COUNT = 360
SPLIT_SEED = 0  # fixed: every experiment, whatever its seed, is tested on the same digits


def read_digits() -> Dataset:
    """1,437 digits to train on and 360 to test on, each class in the same proportion."""
    with files("fedmef.data").joinpath("digits.npz").open("rb") as file, np.load(file) as arrays:
        images = np.rint(arrays["images"] * (255 / 16)).astype(np.uint8)[:, None]
        labels = arrays["labels"].astype(np.int64)
    tested = _tested(labels)
    return Dataset(
        name="digits",
        train=Split(images[~tested], labels[~tested]),
        test=Split(images[tested], labels[tested]),
        classes=10,
    )


def _tested(labels: Integers) -> Bits:
    """Which samples are for testing: each class is spread evenly over 0..1 at random, and the lowest go."""
    generator = generator_for(SPLIT_SEED, "digits split")
    ranks = np.empty(len(labels))
    for label in range(10):
        samples = np.flatnonzero(labels == label)
        ranks[samples] = (generator.permutation(len(samples)) + 0.5) / len(samples)
    tested = np.zeros(len(labels), dtype=np.bool_)
    tested[ranks.argsort(kind="stable")[:TEST_COUNT]] = True
    return tested
