"""Fashion-MNIST (Xiao et al. 2017): 60,000 + 10,000 grey pictures of clothes, 28x28, from its IDX files."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from fedmef.data.archive import Files
from fedmef.data.dataset import Dataset, Split
from fedmef.data.facts import Facts
from fedmef.errors import UserError
from fedmef.sparsity.arrays import Bytes

FACTS = Facts(shape=(1, 28, 28), classes=10, train=60_000)
ARCHIVE = Files(
    dataset="fashion_mnist",
    url="https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    md5={
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    },
    folder="fashion-mnist",
)
CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
LARGEST = 2**27  # bytes of a file, unpacked


def read_fashion_mnist(folder: Path) -> Dataset:
    """The data set from the folder of its files."""
    train, test = (
        Split(
            _read(folder / f"{part}-images-idx3-ubyte.gz", 3)[:, None],
            _read(folder / f"{part}-labels-idx1-ubyte.gz", 1).astype(np.int64),
        )
        for part in ("train", "t10k")
    )
    return Dataset("fashion_mnist", train, test, FACTS.classes, class_names=CLASSES)


def _read(file: Path, axes: int) -> Bytes:
    """An array of bytes: 0, 0, their type 8, the number of axes, the length of each, and the bytes."""
    try:
        with gzip.open(file) as opened:
            content = opened.read(LARGEST)
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(file, str(error)) from None
    start = 4 + 4 * axes
    if content[:4] != bytes((0, 0, 8, axes)) or len(content) < start:
        raise _damaged(file, f"it is no IDX file of {axes} axes")
    shape = [int(length) for length in np.frombuffer(content, ">u4", axes, 4)]
    if math.prod(shape) != len(content) - start:
        raise _damaged(file, f"it has {len(content) - start} bytes for {shape}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _damaged(file: Path, reason: str) -> UserError:
    return UserError(f"{file} is damaged ({reason}): delete it and run `fedmef data fashion_mnist`")
