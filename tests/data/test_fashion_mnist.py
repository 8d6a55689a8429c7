import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest

from fedmef.data import load_dataset
from fedmef.data.archive import Files, obtain
from fedmef.data.fashion_mnist import ARCHIVE, read_fashion_mnist
from fedmef.errors import UserError
from fedmef.sparsity.arrays import Array


def idx(array: Array) -> bytes:
    lengths = b"".join(length.to_bytes(4, "big") for length in array.shape)
    return gzip.compress(bytes((0, 0, 8, array.ndim)) + lengths + array.tobytes(), mtime=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "fashion-mnist").mkdir()
    for part, count in (("train", 6), ("t10k", 3)):
        images = np.arange(count * 784, dtype=np.uint32).astype(np.uint8).reshape(count, 28, 28)
        labels = np.arange(count, dtype=np.uint8)
        (tmp_path / "fashion-mnist" / f"{part}-images-idx3-ubyte.gz").write_bytes(idx(images))
        (tmp_path / "fashion-mnist" / f"{part}-labels-idx1-ubyte.gz").write_bytes(idx(labels))
    return tmp_path / "fashion-mnist"


def test_images_labels_and_names_are_read(folder: Path) -> None:
    data = read_fashion_mnist(folder)
    assert (len(data.train), len(data.test), data.shape, data.classes) == (6, 3, (1, 28, 28), 10)
    assert data.train.images.reshape(-1)[:300].tolist() == [number % 256 for number in range(300)]
    assert data.test.labels.tolist() == [0, 1, 2]
    assert data.class_names is not None
    assert data.class_names[9] == "Ankle boot"


@pytest.mark.parametrize(
    "damage", [b"", b"junk", gzip.compress(b"\0\0\x08\x01", mtime=0), idx(np.zeros(3, np.uint8))[:-9]]
)
def test_a_damaged_file_is_named(folder: Path, damage: bytes) -> None:
    file = folder / "t10k-labels-idx1-ubyte.gz"
    file.write_bytes(damage)
    with pytest.raises(UserError, match=r"t10k-labels-idx1-ubyte\.gz is damaged .*fedmef data fashion_mnist"):
        read_fashion_mnist(folder)


def test_only_the_published_files_are_taken(folder: Path) -> None:
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte\.gz is damaged \(its md5 is not 8d4fb7e6"):
        load_dataset("fashion_mnist", folder.parent, download=False)
    md5 = {name: hashlib.md5((folder / name).read_bytes()).hexdigest() for name in ARCHIVE.md5}
    known = Files("fashion_mnist", ARCHIVE.url, md5, folder.name)
    assert obtain(known, folder.parent, download=False) == folder
    with pytest.raises(UserError, match="dataset 'fashion_mnist' is not there"):
        obtain(known, folder.parent / "elsewhere", download=False)
