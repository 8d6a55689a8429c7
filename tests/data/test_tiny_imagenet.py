from pathlib import Path

import numpy as np
import pytest

from fedmef.data import Dataset
from fedmef.data.tiny_imagenet import read_tiny_imagenet
from fedmef.errors import UserError


def read(folder: Path) -> Dataset:
    return read_tiny_imagenet(folder, classes=2, train_class_count=3, test_class_count=1)


def test_labels_follow_the_sorted_names(tiny_folder: Path) -> None:
    dataset = read(tiny_folder)
    assert (dataset.shape, dataset.classes) == ((3, 64, 64), 2)
    assert dataset.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert dataset.test.labels.tolist() == [1, 0]
    shades = {0: 100, 1: 200}
    for split in (dataset.train, dataset.test):
        for image, label in zip(split.images, split.labels, strict=True):
            assert np.abs(image.astype(int) - shades[int(label)]).max() <= 2  # JPEG is not exact


def test_a_missing_training_image_is_noticed(tiny_folder: Path) -> None:
    (tiny_folder / "train" / "n02" / "images" / "n02_1.JPEG").unlink()
    with pytest.raises(UserError, match=r"n02/images holds 2 JPEG files, not 3.*`fedmef data tiny_imagenet`"):
        read(tiny_folder)


def test_a_missing_list_of_classes_is_named(tiny_folder: Path) -> None:
    (tiny_folder / "wnids.txt").unlink()
    with pytest.raises(UserError, match=r"wnids\.txt cannot be read"):
        read(tiny_folder)


def test_a_list_with_too_few_classes_is_named(tiny_folder: Path) -> None:
    (tiny_folder / "wnids.txt").write_text("n01\n")
    with pytest.raises(UserError, match=r"wnids\.txt names 1 classes, not 2"):
        read(tiny_folder)


@pytest.mark.parametrize("line", ["val_1.JPEG", "val_1.JPEG\tn99\t0", "../../secret.JPEG\tn01\t0"])
def test_a_wrong_annotation_is_quoted(tiny_folder: Path, line: str) -> None:
    (tiny_folder / "val" / "val_annotations.txt").write_text(f"val_0.JPEG\tn02\t0\n{line}\n")
    with pytest.raises(UserError, match=r"val_annotations\.txt has the line '"):
        read(tiny_folder)


def test_too_few_annotations_are_noticed(tiny_folder: Path) -> None:
    (tiny_folder / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn02\t0\n")
    with pytest.raises(UserError, match="has 1 lines, not 2"):
        read(tiny_folder)


def test_a_broken_jpeg_is_named(tiny_folder: Path) -> None:
    file = tiny_folder / "val" / "images" / "val_1.JPEG"
    file.write_bytes(file.read_bytes()[:300])
    with pytest.raises(UserError, match=r"val_1\.JPEG is damaged"):
        read(tiny_folder)
