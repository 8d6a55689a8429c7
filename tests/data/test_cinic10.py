from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedmef.data.cinic10 import read_cinic10
from fedmef.errors import UserError


def test_train_and_test_are_read_and_valid_is_not(cinic_folder: Path) -> None:
    dataset = read_cinic10(cinic_folder, class_count=2)
    assert (len(dataset.train), len(dataset.test), dataset.shape, dataset.classes) == (
        20,
        20,
        (3, 32, 32),
        10,
    )
    for split, part in ((dataset.train, 0), (dataset.test, 2)):
        assert np.array_equal(split.labels, np.arange(10).repeat(2))
        assert np.array_equal(split.images[:, 0, 3, 3], split.labels)
        assert (split.images[:, 1] == part).all()
        assert (split.images[:, 2] == 7).all()


def test_grey_images_become_rgb(cinic_folder: Path, write_image: Callable[..., None]) -> None:
    write_image(cinic_folder / "train" / "airplane" / "0.png", 32, 77)
    assert (read_cinic10(cinic_folder, class_count=2).train.images[0] == 77).all()


def test_a_class_with_a_missing_image_is_named(cinic_folder: Path) -> None:
    (cinic_folder / "test" / "frog" / "1.png").unlink()
    with pytest.raises(
        UserError, match=r"test/frog holds 1 PNG files, not 2: delete the folder .*CINIC-10 and run"
    ):
        read_cinic10(cinic_folder, class_count=2)


@pytest.mark.parametrize("damage", ["empty", "truncated", "junk"])
def test_a_broken_image_is_named(cinic_folder: Path, damage: str) -> None:
    file = cinic_folder / "train" / "cat" / "1.png"
    content = file.read_bytes()
    file.write_bytes(
        {"empty": b"", "truncated": content[: len(content) // 2], "junk": b"GIF89a junk"}[damage]
    )
    with pytest.raises(UserError, match=r"train/cat/1\.png is damaged"):
        read_cinic10(cinic_folder, class_count=2)


def test_an_image_of_another_size_is_named(cinic_folder: Path, write_image: Callable[..., None]) -> None:
    write_image(cinic_folder / "train" / "cat" / "1.png", 31, (0, 0, 0))
    with pytest.raises(UserError, match=r"cat/1\.png is damaged \(it is 31×31, not 32×32\)"):
        read_cinic10(cinic_folder, class_count=2)
