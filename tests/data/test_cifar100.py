import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest

from fedmef.data.cifar100 import PUBLISHED_MD5, read_cifar100
from fedmef.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A pixel's value is its part's number."""
    contents = {
        part: {b"data": np.full((3, 3072), number, dtype=np.uint8), b"fine_labels": [0, 99, number]}
        for number, part in enumerate(("train", "test"), start=1)
    }
    contents["meta"] = {b"fine_label_names": [f"name {number}".encode() for number in range(100)]}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(pickle.dumps(content, protocol=4))
    return tmp_path


def test_fine_labels_and_their_names_are_read(folder: Path) -> None:
    published = {name: hashlib.md5((folder / name).read_bytes()).hexdigest() for name in PUBLISHED_MD5}
    data = read_cifar100(folder, published)
    assert (data.shape, data.classes, data.name) == ((3, 32, 32), 100, "cifar100")
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([0, 99, 1], [0, 99, 2])
    assert (data.train.images == 1).all()
    assert (data.test.images == 2).all()
    assert data.class_names is not None
    assert data.class_names[99] == "name 99"


def test_what_is_not_the_published_file_is_never_unpickled(folder: Path) -> None:
    with pytest.raises(UserError, match=r"train is not the published file .*fedmef data cifar100"):
        read_cifar100(folder)
