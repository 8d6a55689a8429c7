"""A device's own data: arrays in a folder, images in a folder, or what a function gives.

    FOLDER/images.npy, labels.npy          uint8 [n, channels, height, width] and integers [n]; memory-mapped
    FOLDER/3/some.jpg, FOLDER/cat/a.png    a folder for each class: its number, or a name in classes.txt
    package.module:function                gives (images, labels), as NumPy arrays

Images are brought to the size that the network takes once, when it first comes, into a file that is mapped
from then on. `classes.txt` has one name a line and is the same on all devices: one that has not seen every
class must not number them in its own way.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedmef.device.training import Samples
from fedmef.errors import UserError
from fedmef.experiment.names import load_object
from fedmef.sparsity.arrays import Array
from fedmef.sparsity.network import Network
from fedmef.wire.files import left_behind, read_bounded

ARRAYS = (("images", "labels"), ("train_images", "train_labels"))  # the second: how a data set lies on a disk
CLASSES = "classes.txt"
LONGEST_CLASSES = 2**20  # bytes
LONGEST_NUMBER = 9  # digits
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".pgm", ".ppm"})

OpenSamples = Callable[[Network], Samples]


def open_own_data(where: str, cache: Path) -> OpenSamples:
    """What gives a device its samples, once it knows the network; `cache` is a folder for decoded images."""
    folder = _existing_folder(where)
    if folder is None and ":" in where:
        return _fixed(_from_function(where))
    if folder is None:
        raise UserError(f"data = '{where}': there is no such folder")
    for names in ARRAYS:
        files = [folder / f"{name}.npy" for name in names]
        if all(file.is_file() for file in files):
            return _fixed(_checked(str(folder), *(_mapped(file) for file in files)))
    images = _image_files(folder)
    return lambda network: _decoded(folder, images, network.input.shape, cache)


def _existing_folder(where: str) -> Path | None:
    try:
        folder = Path(where).expanduser()
        return folder if folder.is_dir() else None
    except (OSError, RuntimeError):  # a name that is too long, or of a user that there is not
        return None


def _fixed(samples: Samples) -> OpenSamples:
    return lambda network: samples


def _mapped(file: Path) -> Array:
    try:
        return np.lib.format.open_memmap(file, mode="r")
    except Exception as error:  # what NumPy raises at a damaged header is not documented
        raise UserError(f"{file} is no array: {error}") from None


def _from_function(name: str) -> Samples:
    function = load_object("data", name)
    if not callable(function):
        raise UserError(f"data = '{name}' is a {type(function).__name__}, not a function")
    try:
        given: Any = function()
    except Exception as error:
        raise UserError(f"data = '{name}' raised {type(error).__name__}: {error}") from error
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
    numbers = _listed_classes(folder / CLASSES)
    found = []
    for kind in sorted(part for part in folder.iterdir() if part.is_dir()):
        number = _class_of(kind, numbers)
        found += [(file, number) for file in sorted(kind.iterdir()) if file.suffix.lower() in SUFFIXES]
    if not found:
        raise UserError(
            f"data = '{folder}': it has neither images.npy and labels.npy nor a folder for each class"
        )
    for file, _ in found:
        if not file.is_file():
            raise UserError(f"{file} is no file: remove it")  # to open a pipe would take forever
    return found


def _listed_classes(file: Path) -> dict[str, int]:
    if not file.is_file():
        return {}
    try:
        lines = read_bounded(file, LONGEST_CLASSES).decode().splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not text in UTF-8: {error}") from None
    numbers: dict[str, int] = {}
    for name in filter(None, map(str.strip, lines)):
        if name in numbers:
            raise UserError(f"{file} has '{name}' twice: a class has one line")
        numbers[name] = len(numbers)
    return numbers


def _class_of(folder: Path, numbers: dict[str, int]) -> int:
    name = folder.name
    if name in numbers:
        return numbers[name]
    if not numbers and name.isascii() and name.isdigit() and len(name) <= LONGEST_NUMBER:
        return int(name)
    listed = folder.parent / CLASSES
    raise UserError(f"{folder}: its name is no class's number, and not in {listed}; list all classes there")


def _decoded(folder: Path, files: list[tuple[Path, int]], shape: tuple[int, ...], cache: Path) -> Samples:
    labels = np.array([number for _, number in files], dtype=np.int64)
    prefix = f"images-{'x'.join(map(str, shape))}"
    file = cache / f"{prefix}-{_fingerprint(folder, files)}.npy"
    if not _is_decoded(file, (len(files), *shape)):
        try:
            cache.mkdir(parents=True, exist_ok=True)
            _decode(files, shape, file)
        except OSError as error:
            raise UserError(
                f"{cache} cannot be written ({error}); name another folder: --store FOLDER"
            ) from None
        for other in cache.glob(f"{prefix}-*.npy"):
            if other != file:  # of images that have changed since
                other.unlink(missing_ok=True)
        for other in left_behind(cache, (f"{prefix}-*.npy",)):
            if not Path("/proc", other.suffix[1:]).exists():  # who decodes the same now needs it
                other.unlink(missing_ok=True)
    return _checked(str(folder), _mapped(file), labels)


def _fingerprint(folder: Path, files: list[tuple[Path, int]]) -> str:
    """What tells these images from others: a hash of names, sizes and times, not of what is in them."""
    digest = hashlib.blake2b(digest_size=8)
    for file, _ in files:
        facts = file.stat()
        digest.update(f"{file.relative_to(folder)}\0{facts.st_size}\0{facts.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def _is_decoded(file: Path, shape: tuple[int, ...]) -> bool:
    try:
        return file.is_file() and _mapped(file).shape == shape
    except UserError:
        return False


def _decode(files: list[tuple[Path, int]], shape: tuple[int, ...], to: Path) -> None:
    """Write all images as one array, which is there when it is complete."""
    unfinished = to.with_name(f".{to.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    header = {"descr": "|u1", "fortran_order": False, "shape": (len(files), *shape)}
    try:
        # Not mapped: pages would stay resident, and a full disk would end the process.
        with unfinished.open("xb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            for image in decoded_pixels((file for file, _ in files), shape):
                file.write(image.tobytes())
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(to)
    finally:
        unfinished.unlink(missing_ok=True)


def decoded_pixels(files: Iterable[Path], shape: tuple[int, ...]) -> Iterator[Array]:
    """Image files, one after the other, in the size and the colours that a network takes."""
    try:
        from PIL import Image, UnidentifiedImageError  # noqa: PLC0415  (arrays need no Pillow)
    except ModuleNotFoundError:
        raise UserError("image files need Pillow: pip install pillow; or give arrays, images.npy") from None
    channels, height, width = shape
    if channels not in (1, 3):
        raise UserError(f"image files have 1 or 3 channels, and the network takes {channels}: give arrays")
    for file in files:
        if not file.is_file():
            there = "that is a folder; name the files in it" if file.is_dir() else "check its name"
            raise UserError(f"there is no image file {file}: {there}")
        try:
            with Image.open(file) as image:
                small = image.convert("L" if channels == 1 else "RGB").resize((width, height))
        except UnidentifiedImageError:
            raise UserError(f"{file} is no image that Pillow can read: convert it to PNG or JPEG") from None
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise UserError(f"{file} is no image: {error}") from None
        yield np.asarray(small).reshape(height, width, channels).transpose(2, 0, 1)
