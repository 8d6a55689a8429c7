import pytest
import torch

from fedmef.data import SyntheticImages, to_input
from fedmef.errors import UserError


def test_the_options_are_what_is_made() -> None:
    dataset = SyntheticImages(shape=(1, 9, 7), classes=4, train=1030, test=8).make()
    assert (dataset.shape, dataset.classes, len(dataset.train), len(dataset.test)) == ((1, 9, 7), 4, 1030, 8)
    assert dataset.test.labels.bincount().tolist() == [2, 2, 2, 2]


def test_the_same_options_make_the_same_images() -> None:
    first, second, other = (SyntheticImages(train=50, test=10, seed=seed).make() for seed in (3, 3, 4))
    assert torch.equal(first.train.images, second.train.images)
    assert not torch.equal(first.train.images, other.train.images)


def test_the_nearest_class_mean_recognises_most_test_images() -> None:
    dataset = SyntheticImages(train=200, test=100).make()
    train, test = (
        to_input(split.images, *dataset.statistics()).flatten(1) for split in (dataset.train, dataset.test)
    )
    centres = torch.stack([train[dataset.train.labels == label].mean(0) for label in range(10)])
    guesses = torch.cdist(test, centres).argmin(1)
    assert (guesses == dataset.test.labels).float().mean() > 0.9


def test_test_images_are_not_training_images() -> None:
    dataset = SyntheticImages(shape=(1, 4, 4), classes=1, train=20, test=20).make()
    assert not torch.equal(dataset.train.images, dataset.test.images)


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
