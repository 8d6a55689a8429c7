import torch

from fedmef.data.digits import read_digits


def test_the_digits_are_split_with_every_class_in_proportion() -> None:
    digits = read_digits()
    assert (len(digits.train), len(digits.test), digits.shape) == (1437, 360, (1, 8, 8))
    share = digits.test.labels.bincount() / (digits.train.labels.bincount() + digits.test.labels.bincount())
    assert ((share - 360 / 1797).abs() < 0.01).all()


def test_the_digits_use_all_of_a_byte() -> None:
    images = read_digits().train.images
    assert (int(images.min()), int(images.max())) == (0, 255)
    assert len(set(images.flatten().tolist())) == 17


def test_the_split_is_always_the_same() -> None:
    assert torch.equal(read_digits().test.images, read_digits().test.images)
    assert read_digits().test.labels[:8].tolist() == [0, 1, 4, 2, 7, 3, 6, 0]
