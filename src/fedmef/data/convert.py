"""Data sets from what people have: arrays, tensors, PyTorch's and Hugging Face's data sets, image folders.

What the axes mean, and which number is black and which is white, is asked for and never guessed. Inside,
images are uint8 [N, C, H, W]: floats are rounded to 256 levels, a pixel moves by 1/510 of its range at most.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from fedmef.data.dataset import Dataset, Split, user_array
from fedmef.errors import UserError, naming_the_extra
from fedmef.sparsity.arrays import Array, Bytes, Integers

Layout = Literal["NCHW", "NHWC", "NHW"]
Range = tuple[float, float]
MOST_CHANNELS = 4  # of pictures: more of them, where another axis would do, is a layout that was mixed up
IMAGES_AT_A_TIME = 1024
DEEP_MODES = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")  # Pillow would clip them
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".pgm", ".ppm"})


def from_arrays(
    name: str,
    train: tuple[Any, Any],
    test: tuple[Any, Any],
    *,
    layout: Layout,
    value_range: Range | None = None,
    classes: int | None = None,
    class_names: Sequence[str] | None = None,
    users: Any = None,
) -> Dataset:
    """A data set of (images, labels) for training and for testing; NumPy arrays or PyTorch tensors.

    Args:
        name: what the run is recorded with.
        train: images and integer labels.
        test: the same.
        layout: what the images' axes are: NCHW, NHWC, or NHW for grey ones without an axis of channels.
        value_range: black and white, such as (0, 1) or (-1, 1); uint8 images need none.
        classes: how many; by default as many as there are names, or one more than the highest label.
        class_names: what people call each class.
        users: whose each training image is, for `partition = "natural"`.
    """
    splits = [
        Split(_pixels(images, layout, value_range, part), _labels(labels, part))
        for part, (images, labels) in (("train", _pair(train, "train")), ("test", _pair(test, "test")))
    ]
    owners = users if users is None or isinstance(users, list | tuple) else _array(users, "users")
    return _dataset(name, splits, classes, class_names, owners)


def from_samples(
    name: str,
    train: Any,
    test: Any,
    *,
    image: int | str = 0,
    label: int | str = 1,
    user: int | str | None = None,
    layout: Literal["CHW", "HWC", "HW"] | None = None,
    value_range: Range | None = None,
    size: tuple[int, int] | None = None,
    classes: int | None = None,
    class_names: Sequence[str] | None = None,
) -> Dataset:
    """A data set of samples that are asked for one by one, such as a PyTorch `Dataset` or Hugging Face's.

    Args:
        name: what the run is recorded with.
        train: has a length, and `train[i]` is a sample: (image, label), or a row of named columns.
        test: the same.
        image: where in a sample the image is: a place or a column's name. Pillow images are fine.
        label: likewise the integer label.
        user: likewise whose the image is, for `partition = "natural"`; only in `train`.
        layout: what an image's axes are; Pillow images need none.
        value_range: black and white, such as (0, 1); uint8 and Pillow images need none.
        size: height and width that Pillow images are resized to; needed where they differ.
        classes: how many; by default as many as there are names, or one more than the highest label.
        class_names: what people call each class; by default what a Hugging Face data set or a torchvision
            one says.
    """
    splits, users = [], None
    for part, samples in (("train", train), ("test", test)):
        places = [image, label, user] if part == "train" and user is not None else [image, label]
        images: list[Bytes] = []
        numbers: list[Any] = []
        owners: list[Any] = []
        for number in range(_length(samples, part)):
            pixels, *known = _taken(samples[number], places, part)
            images.append(_one_image(pixels, layout, value_range, size, part))
            numbers.append(_plain(known[0]))
            owners += map(_plain, known[1:])
        splits.append(Split(_stacked(images, part), _labels(numbers, part)))
        if owners:
            users = user_array(owners)
    return _dataset(name, splits, classes, class_names or _known_names(train, label, classes), users)


def from_image_folder(
    folder: Path | str,
    size: tuple[int, int],
    *,
    channels: Literal[1, 3] = 3,
    name: str | None = None,
    user: Callable[[Path], str | int] | str | None = None,
) -> Dataset:
    """A data set of image files FOLDER/train/CLASS/any.png and FOLDER/test/CLASS/any.png.

    Args:
        folder: what has `train` and `test`; the folders in `train` name the classes, in sorted order.
        size: height and width that all images are resized to.
        channels: 3 for colours, 1 for grey.
        name: what the run is recorded with; by default the folder's name.
        user: whose a training image is, for `partition = "natural"`: a function of its path below `train`,
            such as `lambda path: path.stem.split("_")[0]`; or a regular expression that is searched in
            that path (`cat/ann_001.png`), whose first group is the user, such as `r"/([a-z]+)_"`.
    """
    root = Path(folder)
    rule = None if user is None else _user_rule(user)
    names = _class_folders(root / "train")
    if unknown := sorted(set(_class_folders(root / "test")) - set(names)):
        raise UserError(
            f"{root / 'test'}: the class '{unknown[0]}' is not in {root / 'train'}; put images there"
        )
    if channels not in (1, 3):
        raise UserError(f"channels = {channels!r}: must be 1 for grey images or 3 for colours")
    splits: list[Split] = []
    users: list[str | int] = []
    for part in ("train", "test"):
        files = [
            (file, label)
            for label, kind in enumerate(names)
            for file in sorted((root / part / kind).glob("*"))
            if file.suffix.lower() in SUFFIXES and file.is_file()
        ]
        if not files:
            raise UserError(f"{root / part}: no image in any of its folders ({', '.join(sorted(SUFFIXES))})")
        if part == "train" and rule is not None:
            users = [rule(file.relative_to(root / part)) for file, _ in files]
        images = np.empty((len(files), channels, *_checked_size(size)), dtype=np.uint8)
        for number, (file, _) in enumerate(files):
            images[number] = _decoded(file, channels, size)
        splits.append(Split(images, np.array([label for _, label in files], dtype=np.int64)))
    owners = user_array(users) if users else None
    return _dataset(name or root.resolve().name, splits, len(names), names, owners)


def _user_rule(user: Callable[[Path], str | int] | str) -> Callable[[Path], str | int]:
    """From a path to its user; raises `UserError` for a path that has none."""
    if not isinstance(user, str):
        if not callable(user):
            raise UserError(f"user = {user!r}: give a function of an image's path, or a regular expression")
        return user
    try:
        pattern = re.compile(user)
    except re.error as error:
        raise UserError(f"user = {user!r} is no regular expression: {error}") from None

    def rule(path: Path) -> str:
        found = pattern.search(path.as_posix())
        owner = found[1 if pattern.groups else 0] if found else None
        if not owner:
            raise UserError(f"user = {user!r}: finds no user in '{path.as_posix()}'")
        return owner

    return rule


def _dataset(
    name: str,
    splits: Sequence[Split],
    classes: int | None,
    class_names: Sequence[str] | None,
    users: Any,
) -> Dataset:
    train, test = splits
    if classes is None:
        highest = 1 + int(max(train.labels.max(), test.labels.max()))
        classes = highest if class_names is None else len(class_names)
    names: Any = class_names if class_names is None or isinstance(class_names, str) else tuple(class_names)
    return Dataset(name, train, test, classes, users=users, class_names=names)


def _pixels(images: Any, layout: Layout, value_range: Range | None, part: str) -> Bytes:
    """uint8 [N, C, H, W] of any array."""
    if layout not in get_args(Layout):
        raise UserError(
            f"layout = {layout!r}: say what the images' axes are, one of {', '.join(get_args(Layout))}"
        )
    array = _array(images, f"{part} images")
    if array.ndim != len(layout):
        raise UserError(f"layout = '{layout}': the {part} images have {array.ndim} axes, {list(array.shape)}")
    if layout == "NHW":
        array = array[:, None]
    elif layout == "NHWC":
        array = np.moveaxis(array, 3, 1)
    _check_channels(array.shape, layout, part)
    return _quantised(array, value_range, part)


def _check_channels(shape: tuple[int, ...], layout: str, part: str) -> None:
    _, channels, height, width = shape
    other = {"NCHW": ("NHWC", width), "NHWC": ("NCHW", height)}.get(layout)
    if other is not None and channels > MOST_CHANNELS >= other[1]:
        raise UserError(
            f"layout = '{layout}' makes {part} images of {channels} channels and {height}x{width} pixels; if "
            f"that is not meant, say '{other[0]}'; if it is, make a fedmef.data.Split of uint8 [N, C, H, W]"
        )


def _quantised(array: Array, value_range: Range | None, part: str) -> Bytes:
    if array.dtype == np.uint8:
        if value_range is not None and _checked_range(value_range) != (0, 255):
            raise UserError(
                f"value_range = {value_range}: the {part} images are uint8, which is 0..255; leave it out, "
                "or give floats"
            )
        return np.ascontiguousarray(array)
    if array.dtype.kind not in "fiu":
        raise UserError(f"the {part} images are {array.dtype}: give uint8, or numbers and their value_range")
    if value_range is None:
        raise UserError(
            f"value_range: the {part} images are {array.dtype}; say which value is black and which is white, "
            "such as value_range=(0, 1)"
        )
    low, high = _checked_range(value_range)
    pixels = np.empty(array.shape, dtype=np.uint8)
    for start in range(0, len(array), IMAGES_AT_A_TIME):  # copies in 64 bits are large
        some = array[start : start + IMAGES_AT_A_TIME].astype(np.float64)
        lowest, highest = (some.min(), some.max()) if some.size else (low, high)
        if not low <= lowest <= highest <= high:  # NaN is no number between them either
            raise UserError(
                f"value_range = ({low:g}, {high:g}): the {part} images have values from {lowest:g} to "
                f"{highest:g}; give the range that they have before any mean is subtracted, or clip them"
            )
        pixels[start : start + IMAGES_AT_A_TIME] = np.rint((some - low) * (255 / (high - low)))
    return pixels


def _checked_range(value_range: Range) -> Range:
    try:
        low, high = (float(value) for value in value_range)
    except (TypeError, ValueError):
        low = high = 0.0
    if not (np.isfinite([low, high]).all() and low < high):
        raise UserError(f"value_range = {value_range!r}: give black and white, two numbers such as (0, 1)")
    return low, high


def _labels(labels: Any, part: str) -> Integers:
    array = np.asarray(labels) if isinstance(labels, list) else _array(labels, f"{part} labels")
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise UserError(
            f"the {part} labels must be integers [N], not {array.dtype} {list(array.shape)}: number the "
            "classes from 0 (of one-hot rows, argmax(1) gives the numbers)"
        )
    return array.astype(np.int64)


def _array(values: Any, what: str) -> Array:
    """A NumPy array of an array or a tensor, wherever that lives."""
    if hasattr(values, "detach"):
        try:
            values = values.detach().cpu().numpy()
        except (TypeError, RuntimeError) as error:  # bfloat16 has no NumPy type
            raise UserError(
                f"the {what}: NumPy cannot take this tensor ({error}); try .float() first"
            ) from None
    if not isinstance(values, np.ndarray):
        raise UserError(f"the {what} must be a NumPy array or a tensor, not a {type(values).__name__}")
    return values


def _pair(given: Any, part: str) -> tuple[Any, Any]:
    if not (isinstance(given, tuple | list) and len(given) == 2):
        raise UserError(f"{part}: give (images, labels)")
    return given[0], given[1]


def _length(samples: Any, part: str) -> int:
    try:
        count = len(samples)
    except TypeError:
        count = 0
    if count == 0 or not hasattr(samples, "__getitem__"):
        raise UserError(
            f"{part}: a {type(samples).__name__} of no known length, or an empty one; give what has len() "
            "and samples by number (an iterable one: list(it))"
        )
    return count


def _taken(sample: Any, places: Sequence[int | str], part: str) -> list[Any]:
    try:
        return [sample[place] for place in places]
    except (KeyError, IndexError, TypeError):
        has = ", ".join(map(repr, sample)) if isinstance(sample, dict) else f"a {type(sample).__name__}"
        wanted = ", ".join(map(repr, places))
        raise UserError(
            f"{part}: a sample has not all of {wanted}; it is {has}: say where image=, label= and user= are"
        ) from None


def _one_image(
    image: Any, layout: str | None, value_range: Range | None, size: tuple[int, int] | None, part: str
) -> Bytes:
    """uint8 [C, H, W] of a Pillow image, an array or a tensor."""
    if hasattr(image, "convert") and hasattr(image, "mode"):
        return _picture(image, 1 if image.mode in ("1", "L", "LA") else 3, size)
    axes = {"CHW": "NCHW", "HWC": "NHWC", "HW": "NHW"}
    if layout not in axes:
        raise UserError(f"layout = {layout!r}: say what an image's axes are, one of {', '.join(axes)}")
    if size is not None:
        raise UserError(f"size = {size}: only Pillow images are resized; resize the arrays before")
    array = _array(image, f"{part} images")[None]
    known: Any = axes[layout]
    pixels: Bytes = _pixels(array, known, value_range, part)[0]
    return pixels


def _picture(image: Any, channels: int, size: tuple[int, int] | None) -> Bytes:
    if image.mode in DEEP_MODES:
        raise UserError(
            f"an image of Pillow's mode '{image.mode}' has more than 8 bits: give arrays and value_range"
        )
    converted = image.convert("L" if channels == 1 else "RGB")
    if size is not None:
        height, width = _checked_size(size)
        converted = converted.resize((width, height))
    pixels: Bytes = np.asarray(converted)
    return pixels.reshape(*pixels.shape[:2], channels).transpose(2, 0, 1)


def _stacked(images: Sequence[Bytes], part: str) -> Bytes:
    shapes = {image.shape for image in images}
    if len(shapes) > 1:
        one, other = sorted(shapes)[:2]
        raise UserError(
            f"{part}: images of shape {list(one)} and of {list(other)}: give size=(height, width) for Pillow "
            "images, and one shape and mode otherwise"
        )
    return np.stack(images)


def _plain(value: Any) -> Any:
    """A number or a text of whatever holds a single one, such as a tensor."""
    return value.item() if hasattr(value, "item") else value


def _known_names(samples: Any, label: int | str, classes: int | None) -> Sequence[str] | None:
    """Hugging Face: features["label"].names; torchvision: classes."""
    try:
        names: Any = samples.features[label].names
    except (AttributeError, KeyError, TypeError):
        names = getattr(samples, "classes", None)
    good = isinstance(names, list | tuple) and all(isinstance(name, str) and name for name in names)
    return names if good and len(names) == (classes or len(names)) else None


def _checked_size(size: tuple[int, int]) -> tuple[int, int]:
    good = isinstance(size, tuple | list) and len(size) == 2
    if not (good and all(isinstance(side, int) and 1 <= side <= 4096 for side in size)):
        raise UserError(f"size = {size!r}: give (height, width), each from 1 to 4096")
    return size[0], size[1]


def _class_folders(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise UserError(f"{folder} is not there: put images in {folder.parent}/train/CLASS and /test/CLASS")
    return sorted(kind.name for kind in folder.iterdir() if kind.is_dir() and not kind.name.startswith("."))


def _decoded(file: Path, channels: int, size: tuple[int, int]) -> Bytes:
    with naming_the_extra():
        from PIL import Image  # noqa: PLC0415  (arrays need no Pillow)

    try:
        with Image.open(file) as image:
            return _picture(image, channels, size)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UserError(f"{file} is no image: {error}") from None
