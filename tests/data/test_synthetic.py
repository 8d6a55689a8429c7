import numpy as np
import pytest

from fedmef.data import Split, SyntheticImages
from fedmef.errors import UserError
from fedmef.sparsity.arrays import Array


def test_the_options_are_what_is_made() -> None:
    dataset = SyntheticImages(shape=(1, 9, 7), classes=4, train=1030, test=8).make()
    assert (dataset.shape, dataset.classes, len(dataset.train), len(dataset.test)) == ((1, 9, 7), 4, 1030, 8)
    assert np.bincount(dataset.test.labels).tolist() == [2, 2, 2, 2]


def test_the_same_options_make_the_same_images() -> None:
    first, second, other = (SyntheticImages(train=50, test=10, seed=seed).make() for seed in (3, 3, 4))
    assert np.array_equal(first.train.images, second.train.images)
    assert not np.array_equal(first.train.images, other.train.images)


def pixels(split: Split) -> Array:
    return split.images.reshape(len(split), -1) / 255


def test_the_nearest_class_mean_recognises_most_test_images() -> None:
    dataset = SyntheticImages(train=200, test=100).make()
    train, test = pixels(dataset.train), pixels(dataset.test)
    centres = np.stack([train[dataset.train.labels == label].mean(0) for label in range(10)])
    distances = np.square(test[:, None] - centres).sum(2)
    assert (distances.argmin(1) == dataset.test.labels).mean() > 0.9


def test_test_images_are_not_training_images() -> None:
    dataset = SyntheticImages(shape=(1, 4, 4), classes=1, train=20, test=20).make()
    assert not np.array_equal(dataset.train.images, dataset.test.images)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (lambda: SyntheticImages(shape=(0, 8, 8)), "shape"),
        (lambda: SyntheticImages(classes=0), "classes = 0"),
        (lambda: SyntheticImages(test=9), "test = 9: both must be at least classes = 10"),
    ],
)
def test_impossible_options_are_refused(options: type[SyntheticImages], message: str) -> None:
    with pytest.raises(UserError, match=message):
        options()
