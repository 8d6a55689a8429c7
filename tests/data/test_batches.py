import pytest
import torch

from fedmef.data import Dataset, augment, batches, to_input
from fedmef.errors import UserError


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_black_and_white_become_their_distance_from_the_mean() -> None:
    images = torch.tensor([0, 255, 0, 255], dtype=torch.uint8).reshape(1, 2, 1, 2)
    x = to_input(images, mean=torch.tensor([0.5, 0.25]), std=torch.tensor([0.5, 0.25]))
    torch.testing.assert_close(x.flatten(), torch.tensor([-1.0, 1.0, -1.0, 3.0]))
    assert x.dtype == torch.float32


def test_normalised_training_images_have_mean_0_and_deviation_1(small: Dataset) -> None:
    x = to_input(small.train.images, *small.statistics())
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std((0, 2, 3), correction=0), torch.ones(2), atol=1e-5, rtol=0)


def test_without_a_generator_samples_come_in_order(small: Dataset) -> None:
    indices = torch.tensor([5, 1, 7])
    mean, std = small.statistics()
    drawn = list(batches(small.train, indices, 2, mean, std, generator=None))
    assert [len(y) for _, y in drawn] == [2, 1]
    assert torch.equal(torch.cat([y for _, y in drawn]), small.train.labels[indices])
    assert torch.equal(torch.cat([x for x, _ in drawn]), to_input(small.train.images[indices], mean, std))


def test_shuffling_keeps_every_sample_with_its_label(small: Dataset) -> None:
    mean, std = torch.zeros(2), torch.full((2,), 1 / 255)  # so that inputs are the pixels
    indices = torch.arange(3, 30)
    drawn = list(batches(small.train, indices, 4, mean, std, generator=generator()))
    samples = {
        (image.round().to(torch.uint8).numpy().tobytes(), int(y))
        for xs, ys in drawn
        for image, y in zip(xs, ys, strict=True)
    }
    expected = {(small.train.images[i].numpy().tobytes(), int(small.train.labels[i])) for i in indices}
    assert samples == expected
    assert not torch.equal(torch.cat([y for _, y in drawn]), small.train.labels[indices])


def test_the_same_generator_draws_the_same_batches(small: Dataset) -> None:
    def draw(seed: int) -> torch.Tensor:
        return torch.cat(
            [
                x
                for x, _ in batches(
                    small.train,
                    torch.arange(30),
                    8,
                    *small.statistics(),
                    generator=generator(seed),
                    augmented=True,
                )
            ]
        )

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


def test_no_samples_give_no_batches(small: Dataset) -> None:
    nothing = torch.empty(0, dtype=torch.int64)
    assert list(batches(small.train, nothing, 4, *small.statistics(), generator=generator())) == []


def test_a_batch_size_of_0_is_refused_at_once(small: Dataset) -> None:
    with pytest.raises(UserError, match="batch_size = 0"):
        batches(small.train, torch.arange(3), 0, *small.statistics(), generator=None)


def test_augmenting_without_a_generator_is_refused(small: Dataset) -> None:
    with pytest.raises(UserError, match="give them a generator"):
        batches(small.train, torch.arange(3), 2, *small.statistics(), generator=None, augmented=True)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_an_augmented_image_is_one_of_its_shifts_or_mirrored_shifts(dtype: torch.dtype) -> None:
    image = torch.arange(1, 65, dtype=dtype).reshape(1, 1, 8, 8)
    padded = torch.nn.functional.pad(image, (1, 1, 1, 1))
    shifts = [padded[..., top : top + 8, left : left + 8] for top in range(3) for left in range(3)]
    possible = [tuple(shift.flatten().tolist()) for crop in shifts for shift in (crop, crop.flip(3))]

    moved = augment(image.expand(500, 1, 8, 8), generator())
    assert moved.dtype == dtype
    seen = {tuple(one.flatten().tolist()) for one in moved}
    assert seen == set(possible)  # all 18 appear among 500 draws


def test_augmenting_leaves_its_input_alone(small: Dataset) -> None:
    images = small.train.images.clone()
    augment(images, generator())
    assert torch.equal(images, small.train.images)


def test_images_too_small_to_shift_are_only_mirrored() -> None:
    image = torch.tensor([1, 2], dtype=torch.uint8).reshape(1, 1, 1, 2)
    seen = {tuple(one.flatten().tolist()) for one in augment(image.expand(50, 1, 1, 2), generator())}
    assert seen == {(1, 2), (2, 1)}
