import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest

from fedmef.data.cifar10 import read_cifar10
from fedmef.errors import UserError


def test_the_batches_are_read_in_order(cifar_folder: Path, published: dict[str, str]) -> None:
    dataset = read_cifar10(cifar_folder, published)
    assert (len(dataset.train), len(dataset.test), dataset.shape, dataset.classes) == (20, 4, (3, 32, 32), 10)
    assert np.array_equal(dataset.train.images[:, 0, 0, 0], np.arange(1, 6).repeat(4))
    assert (dataset.test.images == 6).all()
    assert dataset.train.labels[:4].tolist() == [0, 1, 2, 9]


def test_a_row_is_red_then_green_then_blue(cifar_folder: Path, published: dict[str, str]) -> None:
    row = np.repeat(np.array([1, 2, 3], dtype=np.uint8), 1024)
    row[1] = 9
    content = pickle.dumps({b"data": np.stack([row] * 4), b"labels": [0] * 4}, protocol=4)
    (cifar_folder / "test_batch").write_bytes(content)
    published["test_batch"] = hashlib.md5(content).hexdigest()
    image = read_cifar10(cifar_folder, published).test.images[0]
    assert image[:, 5, 5].tolist() == [1, 2, 3]
    assert int(image[0, 0, 1]) == 9


def test_a_missing_batch_is_named(cifar_folder: Path, published: dict[str, str]) -> None:
    (cifar_folder / "data_batch_5").unlink()
    with pytest.raises(
        UserError, match=r"data_batch_5 cannot be read .*delete the folder .*fedmef data cifar10"
    ):
        read_cifar10(cifar_folder, published)


def test_a_batch_in_anothers_place_is_noticed(cifar_folder: Path, published: dict[str, str]) -> None:
    (cifar_folder / "data_batch_5").write_bytes((cifar_folder / "test_batch").read_bytes())
    with pytest.raises(UserError, match=r"data_batch_5 is not the published file .*delete the folder"):
        read_cifar10(cifar_folder, published)


class Bomb:
    """What a hostile pickle can do when it is read."""

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return pytest.fail, ("it was unpickled",)


def test_what_is_not_the_published_file_is_never_unpickled(
    cifar_folder: Path, published: dict[str, str]
) -> None:
    (cifar_folder / "data_batch_1").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(UserError, match="data_batch_1 is not the published file"):
        read_cifar10(cifar_folder, published)


def test_the_published_files_are_the_default(cifar_folder: Path) -> None:
    with pytest.raises(UserError, match=r"data_batch_1 is not the published file \(its md5 is not c99cafc1"):
        read_cifar10(cifar_folder)
