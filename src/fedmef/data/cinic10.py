"""CINIC-10 (Darlow et al. 2018): 3 × 90,000 pictures of 32×32 in CIFAR-10's classes, from its PNG files.

`train` is trained on and `test` is tested on, as in the paper's tables; `valid` is not used.
"""

from pathlib import Path

import numpy as np

from fedmef.data.archive import Archive
from fedmef.data.cifar10 import CLASSES
from fedmef.data.dataset import Dataset, Split
from fedmef.data.facts import Facts
from fedmef.data.image_files import decode_images
from fedmef.errors import UserError

FACTS = Facts(shape=(3, 32, 32), classes=10, train=90_000)
ARCHIVE = Archive(
    dataset="cinic10",
    url="https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
    md5="6ee4d0c996905fe93221de577967a372",
    folder="CINIC-10",
)


def read_cinic10(folder: Path, class_count: int = 9_000) -> Dataset:
    """The data set from its folder; each part has `class_count` images of each class."""
    train, test = (_read_part(folder / part, class_count) for part in ("train", "test"))
    return Dataset("cinic10", train, test, classes=len(CLASSES), class_names=CLASSES)


def _read_part(folder: Path, class_count: int) -> Split:
    files: list[Path] = []
    for name in CLASSES:
        found = sorted((folder / name).glob("*.png"))
        if len(found) != class_count:
            raise UserError(
                f"{folder / name} holds {len(found)} PNG files, not {class_count}: "
                f"delete the folder {folder.parent} and run `fedmef data cinic10`"
            )
        files += found
    labels = np.arange(len(CLASSES)).repeat(class_count)
    return Split(decode_images(files, 32, "PNG", f"CINIC-10 {folder.name}"), labels)
