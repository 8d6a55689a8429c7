import numpy as np
import pytest

from fedmef.data.digits import read_digits


def test_the_digits_are_split_with_every_class_in_proportion() -> None:
    digits = read_digits()
    assert (len(digits.train), len(digits.test), digits.shape) == (1437, 360, (1, 8, 8))
    test, train = np.bincount(digits.test.labels), np.bincount(digits.train.labels)
    assert (np.abs(test / (train + test) - 360 / 1797) < 0.01).all()


def test_the_digits_use_all_of_a_byte() -> None:
    images = read_digits().train.images
    assert (int(images.min()), int(images.max())) == (0, 255)
    assert len(np.unique(images)) == 17


def test_the_split_is_always_the_same() -> None:
    assert np.array_equal(read_digits().test.images, read_digits().test.images)
    assert read_digits().test.labels[:8].tolist() == [0, 1, 4, 2, 7, 3, 6, 0]


def test_they_are_those_of_scikit_learn() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    images, labels = datasets.load_digits(return_X_y=True)
    digits = read_digits()
    ours = np.concatenate([digits.train.images, digits.test.images]).reshape(1797, 64)
    theirs = np.rint(images * (255 / 16)).astype(np.uint8)
    together = np.concatenate([digits.train.labels, digits.test.labels])
    assert sorted(zip(map(bytes, ours), together.tolist(), strict=True)) == sorted(
        zip(map(bytes, theirs), labels.tolist(), strict=True)
    )
