"""A device's own data: arrays in a folder, images in a folder, or what a function gives.

    FOLDER/images.npy, labels.npy          uint8 [n, channels, height, width] and integers [n]; memory-mapped
    FOLDER/3/some.jpg, FOLDER/cat/a.png    a folder for each class: its number, or a name in classes.txt
    package.module:function                gives (images, labels), as NumPy arrays

Images are brought to the size that the network takes once, when it first comes, into a file that is mapped
ever after. `classes.txt` has one name a line and is the same on all devices: one that has not seen every
class must not number them in its own way.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedmef.device.training import Samples
from fedmef.errors import UserError
from fedmef.experiment.names import load_object
from fedmef.sparsity.arrays import Array
from fedmef.sparsity.network import Network

ARRAYS = (("images", "labels"), ("train_images", "train_labels"))  # the second: how a data set lies on a disk
CLASSES = "classes.txt"
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".pgm", ".ppm"})

OpenSamples = Callable[[Network], Samples]


def open_own_data(where: str, cache: Path) -> OpenSamples:
    """What gives a device its samples, once it knows the network; `cache` is a folder for decoded images."""
    if ":" in where and not Path(where).exists():
        return _fixed(_from_function(where))
    folder = Path(where).expanduser()
    for names in ARRAYS:
        files = [folder / f"{name}.npy" for name in names]
        if all(file.is_file() for file in files):
            return _fixed(_checked(str(folder), *(_mapped(file) for file in files)))
    if not folder.is_dir():
        raise UserError(f"data = '{where}': there is no such folder")
    files_of = _image_files(folder)
    return lambda network: _decoded(folder, files_of, network.input.shape, cache)


def _fixed(samples: Samples) -> OpenSamples:
    return lambda network: samples


def _mapped(file: Path) -> Array:
    try:
        array: Array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UserError(f"{file} is no array: {error}") from None
    return array


def _from_function(name: str) -> Samples:
    function = load_object("data", name)
    if not callable(function):
        raise UserError(f"data = '{name}' is a {type(function).__name__}, not a function")
    given: Any = function()
    if not (
        isinstance(given, tuple) and len(given) == 2 and all(isinstance(part, np.ndarray) for part in given)
    ):
        raise UserError(f"data = '{name}': it must give (images, labels), two NumPy arrays")
    return _checked(name, *given)


def _checked(name: str, images: Array, labels: Array) -> Samples:
    if images.dtype != np.uint8 or images.ndim != 4:
        raise UserError(f"data = '{name}': images must be uint8 [n, C, H, W], not {_kind(images)}")
    if labels.dtype.kind not in "iu" or labels.shape != images.shape[:1]:
        raise UserError(
            f"data = '{name}': {len(images)} images need as many integer labels, not {_kind(labels)}"
        )
    return Samples(images, labels, np.arange(len(images)))


def _kind(array: Array) -> str:
    return f"{array.dtype} {list(array.shape)}"


def _image_files(folder: Path) -> list[tuple[Path, int]]:
    """Every image and its class, in an order that only names decide."""
    listed = folder / CLASSES
    numbers: dict[str, int] = {}
    if listed.is_file():
        names = [line.strip() for line in listed.read_text(encoding="utf-8").splitlines() if line.strip()]
        numbers = {name: number for number, name in enumerate(names)}
    found = []
    for kind in sorted(part for part in folder.iterdir() if part.is_dir()):
        if kind.name not in numbers and not (not numbers and kind.name.isascii() and kind.name.isdigit()):
            raise UserError(
                f"{kind}: its name is no class's number, and not in {listed}; list all classes there"
            )
        number = numbers.get(kind.name, int(kind.name) if kind.name.isdigit() else -1)
        found += [(file, number) for file in sorted(kind.iterdir()) if file.suffix.lower() in SUFFIXES]
    if not found:
        raise UserError(
            f"data = '{folder}': it has neither images.npy and labels.npy nor a folder for each class"
        )
    return found


def _decoded(folder: Path, files: list[tuple[Path, int]], shape: tuple[int, ...], cache: Path) -> Samples:
    labels = np.array([number for _, number in files], dtype=np.int64)
    file = cache / f"images-{'x'.join(map(str, shape))}.npy"
    cache.mkdir(parents=True, exist_ok=True)
    if not _is_current(file, files, shape):
        unfinished = file.with_name(f".{file.name}.{os.getpid()}")
        try:
            images = np.lib.format.open_memmap(unfinished, "w+", np.uint8, (len(files), *shape))
            for number, image in enumerate(_pixels(files, shape)):
                images[number] = image
            images.flush()
            del images
            unfinished.replace(file)
        finally:
            unfinished.unlink(missing_ok=True)
    return _checked(str(folder), _mapped(file), labels)


def _is_current(file: Path, files: list[tuple[Path, int]], shape: tuple[int, ...]) -> bool:
    """Whether the images were decoded before, and none has changed since."""
    try:
        decoded = file.stat().st_mtime_ns
        same = _mapped(file).shape == (len(files), *shape)
    except (OSError, UserError):
        return False
    return same and all(image.stat().st_mtime_ns <= decoded for image, _ in files)


def _pixels(files: list[tuple[Path, int]], shape: tuple[int, ...]) -> Iterator[Array]:
    try:
        from PIL import Image  # noqa: PLC0415  (arrays need no Pillow)
    except ModuleNotFoundError:
        raise UserError("image files need Pillow: pip install pillow; or give arrays, images.npy") from None
    channels, height, width = shape
    if channels not in (1, 3):
        raise UserError(f"image files have 1 or 3 channels, and the network takes {channels}: give arrays")
    for file, _ in files:
        try:
            with Image.open(file) as image:
                small = image.convert("L" if channels == 1 else "RGB").resize((width, height))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise UserError(f"{file} is no image: {error}") from None
        yield np.asarray(small).reshape(height, width, channels).transpose(2, 0, 1)
