"""A device's samples in the order of training, and augmented."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmef.data import Dataset, SyntheticImages
from fedmef.device.batches import augment, batch_sizes, epoch
from fedmef.sparsity.arrays import Array
from fedmef.wire.job import LeftOver

left_overs = st.sampled_from(["even", "drop", "keep"])


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.fixture
def small() -> Dataset:
    return SyntheticImages(shape=(2, 6, 5), classes=3, train=30, test=9).make()


@pytest.mark.parametrize(
    ("samples", "left_over", "sizes"),
    [
        (10, "even", [4, 3, 3]),
        (10, "drop", [4, 4]),
        (10, "keep", [4, 4, 2]),
        (9, "even", [3, 3, 3]),
        (9, "drop", [4, 4]),
        (9, "keep", [4, 4, 1]),
        (5, "even", [3, 2]),
        (5, "drop", [4]),
        (8, "even", [4, 4]),
        (8, "drop", [4, 4]),
        (8, "keep", [4, 4]),
        (3, "even", [3]),
        (3, "drop", [3]),  # or nothing would be trained
        (3, "keep", [3]),
        (0, "even", []),
        (0, "drop", []),
        (0, "keep", []),
    ],
)
def test_batches_of_four_by_hand(samples: int, left_over: LeftOver, sizes: list[int]) -> None:
    assert batch_sizes(samples, 4, left_over) == sizes


@given(samples=st.integers(0, 300), batch_size=st.integers(1, 40), left_over=left_overs)
@settings(deadline=None)
def test_no_batch_is_too_large_or_empty_and_only_drop_leaves_samples_out(
    samples: int, batch_size: int, left_over: LeftOver
) -> None:
    sizes = batch_sizes(samples, batch_size, left_over)
    assert all(1 <= size <= batch_size for size in sizes)
    assert bool(sizes) == bool(samples)
    if left_over == "drop":
        assert samples - sum(sizes) < batch_size
    else:
        assert sum(sizes) == samples


@given(samples=st.integers(1, 300), batch_size=st.integers(1, 40))
@settings(deadline=None)
def test_even_batches_differ_by_one_and_are_as_many_as_with_keep(samples: int, batch_size: int) -> None:
    sizes = batch_sizes(samples, batch_size, "even")
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == len(batch_sizes(samples, batch_size, "keep"))


@given(samples=st.integers(0, 60), batch_size=st.integers(1, 9), left_over=left_overs)
@settings(deadline=None)
def test_an_epoch_has_every_sample_at_most_once_in_batches_of_these_sizes(
    samples: int, batch_size: int, left_over: LeftOver
) -> None:
    own = np.arange(samples) * 3 + 7
    batches = epoch(own, batch_size, left_over, generator())
    assert [len(batch) for batch in batches] == batch_sizes(samples, batch_size, left_over)
    drawn = [int(index) for batch in batches for index in batch]
    assert len(set(drawn)) == len(drawn)
    assert set(drawn) <= set(own.tolist())


def test_an_epoch_is_shuffled_and_leaves_the_indices_alone() -> None:
    own = np.arange(3, 30)
    order = np.concatenate(epoch(own, 4, "even", generator()))
    assert order.tolist() != own.tolist()
    assert sorted(order.tolist()) == own.tolist() == list(range(3, 30))


def test_the_same_generator_draws_the_same_epoch() -> None:
    def draw(seed: int) -> list[list[int]]:
        return [batch.tolist() for batch in epoch(np.arange(30), 8, "keep", generator(seed))]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_two_epochs_of_one_generator_differ() -> None:
    once = generator()
    first, second = (np.concatenate(epoch(np.arange(30), 8, "keep", once)) for _ in range(2))
    assert not np.array_equal(first, second)
    assert np.array_equal(np.sort(first), np.sort(second))


def test_each_epoch_drops_other_samples() -> None:
    """So none is left out for good."""
    once = generator()
    seen = {
        int(index) for _ in range(20) for batch in epoch(np.arange(7), 4, "drop", once) for index in batch
    }
    assert seen == set(range(7))


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
