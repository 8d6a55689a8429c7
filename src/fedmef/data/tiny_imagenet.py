"""Tiny-ImageNet (Stanford CS231n): 100,000 + 10,000 photographs of 64×64 in 200 classes, from its JPEG files.

Its own test images have no public labels, so `val` is tested on. Labels follow the sorted WordNet names.
"""

from pathlib import Path

import numpy as np

from fedmef.data.archive import Archive
from fedmef.data.dataset import Dataset, Split
from fedmef.data.facts import Facts
from fedmef.data.image_files import decode_images
from fedmef.errors import UserError

FACTS = Facts(shape=(3, 64, 64), classes=200, train=100_000)
ARCHIVE = Archive(
    dataset="tiny_imagenet",
    url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    md5="90528d7ca1a48142e341f4ef8d21d0de",
    folder="tiny-imagenet-200",
)


def read_tiny_imagenet(
    folder: Path, classes: int = 200, train_class_count: int = 500, test_class_count: int = 50
) -> Dataset:
    """The data set from its folder; the counts are images of each class."""
    names = sorted(_lines(folder / "wnids.txt"))
    if len(set(names)) != classes:
        raise _wrong(folder / "wnids.txt", f"names {len(set(names))} classes, not {classes}")
    label_of = {name: label for label, name in enumerate(names)}
    train = _read_train(folder / "train", label_of, train_class_count)
    test = _read_val(folder / "val", label_of, test_class_count)
    return Dataset("tiny_imagenet", train, test, classes)


def _read_train(folder: Path, label_of: dict[str, int], class_count: int) -> Split:
    files: list[Path] = []
    for name in label_of:
        found = sorted((folder / name / "images").glob("*.JPEG"))
        if len(found) != class_count:
            raise _wrong(folder / name / "images", f"holds {len(found)} JPEG files, not {class_count}")
        files += found
    labels = np.arange(len(label_of)).repeat(class_count)
    return Split(decode_images(files, 64, "JPEG", "Tiny-ImageNet train"), labels)


def _read_val(folder: Path, label_of: dict[str, int], class_count: int) -> Split:
    annotations = folder / "val_annotations.txt"
    files: list[Path] = []
    labels: list[int] = []
    for line in _lines(annotations):
        file, name, *_ = [*line.split("\t"), ""]
        # A name with a folder in it would lead outside of this one.
        if name not in label_of or Path(file).name != file:
            raise _wrong(annotations, f"has the line '{line}', not an image and one of the classes")
        files.append(folder / "images" / file)
        labels.append(label_of[name])
    if len(files) != class_count * len(label_of):
        raise _wrong(annotations, f"has {len(files)} lines, not {class_count * len(label_of)}")
    return Split(decode_images(files, 64, "JPEG", "Tiny-ImageNet val"), np.array(labels, dtype=np.int64))


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(file, f"cannot be read ({error})") from error


def _wrong(file: Path, what: str) -> UserError:
    return UserError(
        f"{file} {what}: delete the folder {ARCHIVE.folder} around it and run `fedmef data tiny_imagenet`"
    )
