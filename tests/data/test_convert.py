"""Data as people have them: arrays of any layout and range, PyTorch's and Hugging Face's sets, folders."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import TensorDataset

from fedmef.data import Dataset, from_arrays, from_image_folder, from_samples
from fedmef.errors import UserError
from fedmef.sparsity.arrays import Array

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 3, 8, 5), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2])


def arrays(images: Any, **options: Any) -> Dataset:
    return from_arrays("mine", (images, LABELS), (images[:2], LABELS[:2]), **options)


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize(
    ("convert", "options"),
    [
        (lambda pixels: pixels, {"layout": "NCHW"}),
        (lambda pixels: pixels.transpose(0, 2, 3, 1), {"layout": "NHWC"}),
        (lambda pixels: (pixels / 255).astype(np.float32), {"layout": "NCHW", "value_range": (0, 1)}),
        (lambda pixels: pixels.transpose(0, 2, 3, 1) / 255, {"layout": "NHWC", "value_range": (0, 1)}),
        (lambda pixels: pixels / 127.5 - 1, {"layout": "NCHW", "value_range": (-1, 1)}),
        (lambda pixels: pixels.astype(np.int64), {"layout": "NCHW", "value_range": (0, 255)}),
    ],
)
def test_every_form_of_the_same_images_gives_the_same_pixels(
    convert: Callable[[Array], Array], options: dict[str, Any], tensors: bool
) -> None:
    images: Any = np.ascontiguousarray(convert(PIXELS))
    data = arrays(torch.from_numpy(images) if tensors else images, **options)
    assert np.array_equal(data.train.images, PIXELS)
    assert np.array_equal(data.train.labels, LABELS)
    assert (data.classes, data.shape, data.class_names, data.users) == (3, (3, 8, 5), None, None)


def test_grey_images_may_lack_the_axis_of_channels() -> None:
    data = arrays(PIXELS[:, 0], layout="NHW", class_names=["a", "b", "c", "d"], users=LABELS)
    assert np.array_equal(data.train.images, PIXELS[:, :1])
    assert (data.classes, data.class_names) == (4, ("a", "b", "c", "d"))
    assert data.users is not None


@given(st.floats(-3, 3, width=32))
def test_a_pixel_moves_by_half_a_level_at_most(value: float) -> None:
    images = np.full((6, 1, 2, 2), value, dtype=np.float32)
    pixels = arrays(images, layout="NCHW", value_range=(-3, 3)).train.images
    assert abs(pixels[0, 0, 0, 0] / 255 * 6 - 3 - value) <= 6 / 510 + 1e-9


@pytest.mark.parametrize(
    ("images", "options", "message"),
    [
        (PIXELS, {"layout": "CHW"}, "layout = 'CHW': say what the images' axes are, one of NCHW, NHWC, NHW"),
        (PIXELS, {"layout": None}, "layout = None: say what"),
        (PIXELS, {"layout": "NHW"}, r"layout = 'NHW': the train images have 4 axes, \[6, 3, 8, 5\]"),
        (PIXELS, {"layout": "NHWC"}, "makes train images of 5 channels and 3x8 pixels; .* say 'NCHW'"),
        (PIXELS.transpose(0, 2, 3, 1), {"layout": "NCHW"}, "of 8 channels and 5x3 pixels; .* say 'NHWC'"),
        (
            PIXELS / 255,
            {"layout": "NCHW"},
            r"value_range: the train images are float64; .*value_range=\(0, 1\)",
        ),
        (
            PIXELS * 1.0,
            {"layout": "NCHW", "value_range": (0, 1)},
            "have values from 0 to 255; give the range",
        ),
        (PIXELS * np.nan, {"layout": "NCHW", "value_range": (0, 1)}, "have values from nan to nan"),
        (PIXELS / 255, {"layout": "NCHW", "value_range": (1, 0)}, "give black and white, two numbers"),
        (PIXELS / 255, {"layout": "NCHW", "value_range": 1}, "give black and white, two numbers"),
        (PIXELS, {"layout": "NCHW", "value_range": (0, 1)}, r"are uint8, which is 0\.\.255; leave it out"),
        (PIXELS, {"layout": "NCHW", "value_range": 1}, "give black and white, two numbers"),
        (PIXELS, {"layout": "NCHW", "class_names": "abc"}, "class_names must be a list of strings"),
        (PIXELS > 9, {"layout": "NCHW"}, "the train images are bool: give uint8, or numbers"),
        (PIXELS.tolist(), {"layout": "NCHW"}, "must be a NumPy array or a tensor, not a list"),
        (torch.zeros(6, 1, 2, 2, dtype=torch.bfloat16), {"layout": "NCHW"}, r"try \.float\(\) first"),
        (PIXELS, {"layout": "NCHW", "users": LABELS[:3]}, "6 training images have 3 users"),
        (PIXELS, {"layout": "NCHW", "classes": 2}, r"with classes = 2 they must be in 0\.\.1"),
    ],
)
def test_what_is_missing_or_wrong_is_named_with_the_remedy(
    images: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        arrays(images, **options)


def test_wrong_labels_are_named() -> None:
    one_hot = np.eye(3)[LABELS]
    with pytest.raises(UserError, match=r"train labels must be integers \[N\], not float64 \[6, 3\].*argmax"):
        from_arrays("mine", (PIXELS, one_hot), (PIXELS, LABELS), layout="NCHW")
    with pytest.raises(UserError, match=r"test: give \(images, labels\)"):
        from_arrays("mine", (PIXELS, LABELS), PIXELS, layout="NCHW")  # type: ignore[arg-type]


def test_a_pytorch_data_set() -> None:
    floats = torch.from_numpy(PIXELS) / 255
    samples = TensorDataset(floats, torch.from_numpy(LABELS), torch.tensor([4, 4, 4, 9, 9, 9]))
    data = from_samples("mine", samples, samples, layout="CHW", value_range=(0, 1), user=2)
    assert np.array_equal(data.train.images, PIXELS)
    assert np.array_equal(data.train.labels, LABELS)
    assert data.users is not None
    assert data.users.tolist() == [4, 4, 4, 9, 9, 9]


class Rows:
    """What a Hugging Face data set looks like from here."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        self.features = {"image": None, "label": SimpleNamespace(names=["cat", "dog", "owl"])}

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.rows[number]


def rows(mode: str = "RGB") -> Rows:
    images = [Image.fromarray(pixels.transpose(1, 2, 0)).convert(mode) for pixels in PIXELS]
    writers = ["ann", "bob", "ann", "bob", "ann", "bob"]
    return Rows(
        [
            {"image": image, "label": int(label), "writer": writer}
            for image, label, writer in zip(images, LABELS, writers, strict=True)
        ]
    )


def test_a_hugging_face_data_set_with_its_class_names_and_users() -> None:
    data = from_samples("mine", rows(), rows(), image="image", label="label", user="writer")
    assert np.array_equal(data.train.images, PIXELS)
    assert data.class_names == ("cat", "dog", "owl")
    assert data.users is not None
    assert data.users.tolist() == ["ann", "bob"] * 3
    small = from_samples("mine", rows("L"), rows("L"), image="image", label="label", size=(4, 6))
    assert small.shape == (1, 4, 6)


@pytest.mark.parametrize(
    ("samples", "options", "message"),
    [
        (
            rows(),
            {},
            "train: a sample has not all of 0, 1; it is 'image', 'label', 'writer': say where image=",
        ),
        (iter([]), {}, r"train: a list_iterator of no known length.*list\(it\)"),
        ([], {}, "or an empty one"),
        ([(PIXELS[0], 1)], {}, "layout = None: say what an image's axes are, one of CHW, HWC, HW"),
        ([(PIXELS[0], 1)], {"layout": "CHW", "size": (2, 2)}, "only Pillow images are resized"),
        ([(PIXELS[0], 1), (PIXELS[0, :, 1:], 1)], {"layout": "CHW"}, r"\[3, 7, 5\] and of \[3, 8, 5\]"),
        ([(PIXELS[0], "cat")], {"layout": "CHW"}, "labels must be integers"),
        ([(Image.new("I;16", (4, 4)), 1)], {}, "mode 'I;16' has more than 8 bits"),
        ([(Image.new("L", (4, 4)), 1)], {"size": 4}, r"size = 4: give \(height, width\)"),
    ],
)
def test_samples_that_do_not_fit_are_named(samples: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        from_samples("mine", samples, samples, **options)


def test_an_image_folder(tmp_path: Path, write_image: Callable[..., None]) -> None:
    for part, shade in (("train", 10), ("test", 20)):
        write_image(tmp_path / "pets" / part / "dog" / "1.png", 9, (shade, 2, 3))
        write_image(tmp_path / "pets" / part / "cat" / "1.png", 5, shade)
    write_image(tmp_path / "pets" / "train" / "cat" / "0.jpg", 7, 255)
    (tmp_path / "pets" / "train" / "cat" / "notes.txt").write_text("not an image")
    data = from_image_folder(tmp_path / "pets", (4, 6))
    assert (data.name, data.shape, data.class_names) == ("pets", (3, 4, 6), ("cat", "dog"))
    assert data.train.labels.tolist() == [0, 0, 1]
    assert data.train.images[:, :, 0, 0].tolist() == [[255, 255, 255], [10, 10, 10], [10, 2, 3]]
    assert from_image_folder(tmp_path / "pets", (4, 4), channels=1).shape == (1, 4, 4)

    write_image(tmp_path / "pets" / "test" / "owl" / "1.png", 5, 9)
    with pytest.raises(UserError, match="the class 'owl' is not in"):
        from_image_folder(tmp_path / "pets", (4, 4))
    (tmp_path / "pets" / "test" / "owl" / "1.png").unlink()
    (tmp_path / "pets" / "test" / "owl").rmdir()
    (tmp_path / "pets" / "test" / "dog" / "2.png").write_text("no image")
    with pytest.raises(UserError, match=r"2\.png is no image"):
        from_image_folder(tmp_path / "pets", (4, 4))
    with pytest.raises(UserError, match="train is not there: put images in"):
        from_image_folder(tmp_path / "nothing", (4, 4))


@pytest.mark.parametrize("user", [r"/([a-z]+)_", lambda path: path.stem.split("_")[0]])
def test_the_files_of_an_image_folder_have_users(
    tmp_path: Path, user: Any, write_image: Callable[..., None]
) -> None:
    for name in ("train/cat/ann_1.png", "train/cat/bob_1.png", "train/dog/ann_2.png", "test/cat/1.png"):
        write_image(tmp_path / name, 5, 9)
    data = from_image_folder(tmp_path, (4, 4), user=user)
    assert data.users is not None
    assert data.users.tolist() == ["ann", "bob", "ann"]


@pytest.mark.parametrize(
    ("user", "message"),
    [
        ("([a-z]+", r"user = '\(\[a-z\]\+' is no regular expression"),
        ("zoe", "user = 'zoe': finds no user in 'cat/ann_1.png'"),
        (3, "user = 3: give a function of an image's path, or a regular expression"),
        (lambda path: None, "users must be integers or strings"),
    ],
)
def test_a_rule_for_users_that_finds_none_is_said(
    tmp_path: Path, user: Any, message: str, write_image: Callable[..., None]
) -> None:
    for name in ("train/cat/ann_1.png", "test/cat/1.png"):
        write_image(tmp_path / name, 5, 9)
    with pytest.raises(UserError, match=message):
        from_image_folder(tmp_path, (4, 4), user=user)
