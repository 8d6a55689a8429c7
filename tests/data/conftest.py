"""Small data sets, and small copies of the official folders."""

import hashlib
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedmef.data import Dataset, SyntheticImages
from fedmef.data.cifar10 import CLASSES, PUBLISHED_MD5


@pytest.fixture
def small() -> Dataset:
    return SyntheticImages(shape=(2, 6, 5), classes=3, train=30, test=9).make()


@pytest.fixture
def cifar_folder(tmp_path: Path) -> Path:
    """Five training batches and a test batch of 4 images; a pixel's value is its batch's number."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for number, name in enumerate(
        [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"], start=1
    ):
        content = {b"data": np.full((4, 3072), number, dtype=np.uint8), b"labels": [0, 1, 2, 9]}
        (folder / name).write_bytes(pickle.dumps(content, protocol=4))
    return folder


@pytest.fixture
def published(cifar_folder: Path) -> dict[str, str]:
    """The md5 of each of these batches, in the order of the official ones."""
    return {name: hashlib.md5((cifar_folder / name).read_bytes()).hexdigest() for name in PUBLISHED_MD5}


@pytest.fixture
def write_image() -> Callable[..., None]:
    """Writes an image of one colour, or of one grey."""

    def write(file: Path, size: int, colour: int | tuple[int, int, int]) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L" if isinstance(colour, int) else "RGB", (size, size), colour).save(file)

    return write


@pytest.fixture
def cinic_folder(tmp_path: Path, write_image: Callable[..., None]) -> Path:
    """Two images of each class; red tells the class and green the part."""
    folder = tmp_path / "CINIC-10"
    for part_number, part in enumerate(("train", "valid", "test")):
        for label, name in enumerate(CLASSES):
            for number in range(2):
                write_image(folder / part / name / f"{number}.png", 32, (label, part_number, 7))
    return folder


@pytest.fixture
def tiny_folder(tmp_path: Path, write_image: Callable[..., None]) -> Path:
    """Two classes, listed out of order, with 3 training images and one test image each."""
    folder = tmp_path / "tiny-imagenet-200"
    for shade, name in ((200, "n02"), (100, "n01")):
        for number in range(3):
            write_image(folder / "train" / name / "images" / f"{name}_{number}.JPEG", 64, shade)
    write_image(folder / "val" / "images" / "val_0.JPEG", 64, (200, 200, 200))
    write_image(folder / "val" / "images" / "val_1.JPEG", 64, 100)
    (folder / "wnids.txt").write_text("n02\nn01\n")
    (folder / "val" / "val_annotations.txt").write_text(
        "val_0.JPEG\tn02\t0\t0\t9\t9\nval_1.JPEG\tn01\t0\t0\t9\t9\n"
    )
    return folder
