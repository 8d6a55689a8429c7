"""A device's samples, shuffled and augmented a batch at a time."""

import numpy as np
import pytest

from fedmef.data import Dataset, SyntheticImages
from fedmef.device.batches import augment, batches
from fedmef.sparsity.arrays import Array, Bytes, Integers


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.fixture
def small() -> Dataset:
    return SyntheticImages(shape=(2, 6, 5), classes=3, train=30, test=9).make()


def drawn(
    data: Dataset, indices: Integers, batch_size: int, seed: int = 0, augmented: bool = False
) -> list[tuple[Bytes, Integers]]:
    train = data.train
    return list(
        batches(train.images, train.labels, indices, batch_size, generator(seed), augmented=augmented)
    )


def test_the_last_batch_may_be_smaller(small: Dataset) -> None:
    assert [len(labels) for _, labels in drawn(small, np.array([5, 1, 7]), 2)] == [2, 1]
    assert [len(labels) for _, labels in drawn(small, np.arange(8), 4)] == [4, 4]
    assert [len(labels) for _, labels in drawn(small, np.arange(3), 32)] == [3]


def test_batches_are_what_the_data_are(small: Dataset) -> None:
    images, labels = drawn(small, np.arange(30), 8)[0]
    assert images.dtype == np.uint8
    assert images.shape == (8, 2, 6, 5)
    assert labels.dtype == np.int64


def test_shuffling_keeps_every_sample_with_its_label(small: Dataset) -> None:
    indices = np.arange(3, 30)
    shuffled = drawn(small, indices, 4)
    samples = [
        (image.tobytes(), int(label))
        for images, labels in shuffled
        for image, label in zip(images, labels, strict=True)
    ]
    expected = [(small.train.images[index].tobytes(), int(small.train.labels[index])) for index in indices]
    assert sorted(samples) == sorted(expected)
    assert samples != expected


def test_the_same_generator_draws_the_same_batches(small: Dataset) -> None:
    def draw(seed: int) -> Array:
        return np.concatenate([images for images, _ in drawn(small, np.arange(30), 8, seed, augmented=True)])

    assert np.array_equal(draw(1), draw(1))
    assert not np.array_equal(draw(1), draw(2))


def test_two_epochs_of_one_generator_differ(small: Dataset) -> None:
    once = generator()
    first, second = (
        np.concatenate([labels for _, labels in batches(*arrays(small), np.arange(30), 8, once)])
        for _ in range(2)
    )
    assert not np.array_equal(first, second)
    assert np.array_equal(np.sort(first), np.sort(second))


def arrays(data: Dataset) -> tuple[Bytes, Integers]:
    return data.train.images, data.train.labels


def test_no_samples_give_no_batches(small: Dataset) -> None:
    assert drawn(small, np.empty(0, dtype=np.int64), 4) == []


def test_a_batch_is_a_copy_of_the_data(small: Dataset) -> None:
    before = small.train.images.copy()
    for images, labels in drawn(small, np.arange(30), 4):
        images[:], labels[:] = 0, 0
    assert np.array_equal(small.train.images, before)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_an_augmented_image_is_one_of_its_shifts_or_mirrored_shifts(dtype: type) -> None:
    image: Array = np.arange(1, 65, dtype=dtype).reshape(1, 1, 8, 8)
    padded = np.pad(image, ((0, 0), (0, 0), (1, 1), (1, 1)))
    shifts = [padded[..., top : top + 8, left : left + 8] for top in range(3) for left in range(3)]
    possible = {tuple(shift.flatten().tolist()) for crop in shifts for shift in (crop, crop[..., ::-1])}

    moved = augment(np.broadcast_to(image, (500, 1, 8, 8)), generator())
    assert moved.dtype == dtype
    seen = {tuple(one.flatten().tolist()) for one in moved}
    assert seen == possible  # all 18 appear among 500 draws


def test_all_channels_of_an_image_move_alike() -> None:
    image = np.arange(1, 129, dtype=np.uint8).reshape(1, 1, 8, 16)
    both = np.concatenate([image, image], axis=1)
    moved = augment(np.broadcast_to(both, (50, 2, 8, 16)), generator())
    assert np.array_equal(moved[:, 0], moved[:, 1])
    assert len(np.unique(moved, axis=0)) > 10


def test_images_are_shifted_by_an_eighth_at_most() -> None:
    """For 32x32 this is the usual random crop with a padding of 4."""
    image = np.zeros((1, 1, 32, 32), dtype=np.uint8)
    image[..., 16, 16] = 1
    moved = augment(np.broadcast_to(image, (2000, 1, 32, 32)), generator())
    rows, columns = np.nonzero(moved[:, 0])[1:]
    assert set(rows.tolist()) == set(range(12, 21))
    assert set(columns.tolist()) == set(range(11, 21))  # mirrored, 16 becomes 15


def test_augmenting_leaves_its_input_alone(small: Dataset) -> None:
    images = small.train.images.copy()
    augment(images, generator())
    assert np.array_equal(images, small.train.images)


def test_images_too_small_to_shift_are_only_mirrored() -> None:
    image = np.array([1, 2], dtype=np.uint8).reshape(1, 1, 1, 2)
    moved = augment(np.broadcast_to(image, (50, 1, 1, 2)), generator())
    assert {tuple(one.flatten().tolist()) for one in moved} == {(1, 2), (2, 1)}
