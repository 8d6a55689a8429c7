import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from fedmef.data.cifar10 import read_cifar10
from fedmef.errors import UserError


def test_the_batches_are_read_in_order(cifar_folder: Path) -> None:
    dataset = read_cifar10(cifar_folder, batch_count=4, published={})
    assert (len(dataset.train), len(dataset.test), dataset.shape, dataset.classes) == (20, 4, (3, 32, 32), 10)
    assert torch.equal(dataset.train.images[:, 0, 0, 0].long(), torch.arange(1, 6).repeat_interleave(4))
    assert (dataset.test.images == 6).all()
    assert dataset.train.labels[:4].tolist() == [0, 1, 2, 9]


def test_a_row_is_red_then_green_then_blue(cifar_folder: Path) -> None:
    row = np.repeat(np.array([1, 2, 3], dtype=np.uint8), 1024)
    row[1] = 9
    (cifar_folder / "test_batch").write_bytes(
        pickle.dumps({b"data": np.stack([row] * 4), b"labels": [0] * 4}, protocol=4)
    )
    image = read_cifar10(cifar_folder, batch_count=4, published={}).test.images[0]
    assert image[:, 5, 5].tolist() == [1, 2, 3]
    assert int(image[0, 0, 1]) == 9


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {b"data": np.zeros((3, 3072), dtype=np.uint8), b"labels": [0] * 3},
            r"'data' is \[3, 3072\], not \[4, 3072\]",
        ),
        ({b"labels": [0] * 4}, "'data' is NoneType"),
        (
            {b"data": np.zeros((4, 3072), dtype=np.uint8), b"labels": [0] * 3},
            "'labels' is not a list of 4 numbers",
        ),
        ({b"data": np.zeros((4, 3072), dtype=np.uint8), b"labels": [0, 0, 0, 10]}, "'labels' is not a list"),
        ({b"data": np.zeros((4, 3072), dtype=np.uint8), b"labels": [0, 0, 0, 1.5]}, "'labels' is not a list"),
    ],
)
def test_arrays_of_a_wrong_size_are_refused(
    cifar_folder: Path, content: dict[bytes, object], message: str
) -> None:
    (cifar_folder / "data_batch_3").write_bytes(pickle.dumps(content, protocol=4))
    with pytest.raises(
        UserError, match=rf"data_batch_3.*{message}.*delete the folder .* `fedmef data cifar10`"
    ):
        read_cifar10(cifar_folder, batch_count=4, published={})


def test_a_missing_batch_is_named(cifar_folder: Path) -> None:
    (cifar_folder / "data_batch_5").unlink()
    with pytest.raises(UserError, match="data_batch_5"):
        read_cifar10(cifar_folder, batch_count=4, published={})


def test_a_batch_in_anothers_place_is_noticed(cifar_folder: Path) -> None:
    published = {"data_batch_5": "0" * 32}
    with pytest.raises(UserError, match=r"data_batch_5 is not the published file .*delete the folder"):
        read_cifar10(cifar_folder, batch_count=4, published=published)
