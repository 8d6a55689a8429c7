"""A device's own data: arrays, images in folders, a function, and folders with anything else in them."""

import io
import os
import sys
import types
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedmef.device import own_data
from fedmef.device.own_data import open_own_data
from fedmef.device.training import Samples
from fedmef.errors import UserError
from fedmef.sparsity.arrays import Array
from tests.sparsity.networks import chain, convolution, images, pooled

GREY = chain(convolution("conv", "input", (4, 1, 3, 3)), *pooled("conv"), of=images(1, 4, 4))
COLOUR = chain(convolution("conv", "input", (4, 3, 3, 3)), *pooled("conv"), of=images(3, 4, 6))
PIXELS = np.arange(3 * 16, dtype=np.uint8).reshape(3, 1, 4, 4)
LABELS = np.array([2, 0, 1])


def opened(folder: Path, network: Any = GREY, cache: Path | None = None) -> Samples:
    return open_own_data(str(folder), cache or folder)(network)


def save(folder: Path, pixels: Array = PIXELS, labels: Array = LABELS, prefix: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    np.save(folder / f"{prefix}images.npy", pixels)
    np.save(folder / f"{prefix}labels.npy", labels)
    return folder


def picture(file: Path, *grey: int) -> Path:
    """A row of grey pixels, each as high and as wide as the network's image has room for."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.repeat(np.array(grey, dtype=np.uint8)[None], len(grey), 0)).save(file)
    return file


def greys(samples: Samples) -> list[int]:
    """The first pixel of every image."""
    return [int(pixel) for pixel in samples.images[:, 0, 0, 0]]


# Arrays.


@pytest.mark.parametrize("prefix", ["", "train_"])
def test_arrays_in_a_folder_are_mapped_and_not_read(tmp_path: Path, prefix: str) -> None:
    samples = opened(save(tmp_path, prefix=prefix))
    assert isinstance(samples.images, np.memmap)
    assert samples.images.mode == "r"
    np.testing.assert_array_equal(samples.images, PIXELS)
    np.testing.assert_array_equal(samples.labels, LABELS)
    assert samples.indices.tolist() == [0, 1, 2]


def test_labels_may_be_integers_of_any_kind(tmp_path: Path) -> None:
    for kind in ("u1", "i2", ">i8"):
        samples = opened(save(tmp_path, labels=LABELS.astype(kind)))
        assert samples.gather(np.array([2, 0]))[1].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("pixels", "labels", "message"),
    [
        (PIXELS.astype(np.float32), LABELS, r"uint8 \[n, C, H, W\], not float32 \[3, 1, 4, 4\]"),
        (PIXELS[:, 0], LABELS, r"not uint8 \[3, 4, 4\]"),
        (PIXELS, LABELS.astype(np.float64), r"integer labels, not float64 \[3\]"),
        (PIXELS, LABELS[:2], r"3 images need as many integer labels, not int64 \[2\]"),
        (PIXELS, LABELS[:, None], r"not int64 \[3, 1\]"),
    ],
)
def test_arrays_of_another_kind_are_refused(
    tmp_path: Path, pixels: Array, labels: Array, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        opened(save(tmp_path, pixels, labels))


def header(text: str) -> bytes:
    """An array's file that has only this header."""
    return b"\x93NUMPY\x02\x00" + len(text).to_bytes(4, "little") + text.encode()


def pickled() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([print], dtype=object), allow_pickle=True)
    return file.getvalue()


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("images.npy", b"")
    return file.getvalue()


def shaped(shape: str) -> bytes:
    return header(f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}\n") + bytes(64)


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"no array", id="text"),
        pytest.param(np.lib.format.magic(1, 0), id="cut"),
        pytest.param(pickled(), id="pickled"),
        pytest.param(zipped(), id="npz"),
        pytest.param(header(" " * 2**20), id="long header"),
        pytest.param(header("{'descr': (" + "\n"), id="open bracket"),
        pytest.param(header("-" * 9000 + "1"), id="deep header"),
        pytest.param(shaped("(10**6, 1, 4, 4)"), id="formula"),
        pytest.param(shaped("(1000000, 1, 4, 4)"), id="beyond the file"),
        pytest.param(shaped("(4294967296, 4294967296, 1, 1)"), id="overflow"),
        pytest.param(shaped("(-1, 1, 4, 4)"), id="negative"),
    ],
)
def test_a_file_that_is_no_array_is_refused(tmp_path: Path, content: bytes) -> None:
    (save(tmp_path) / "images.npy").write_bytes(content)
    with pytest.raises(UserError, match=r"images\.npy is no array"):
        opened(tmp_path)


def test_one_of_two_arrays_is_not_enough(tmp_path: Path) -> None:
    (save(tmp_path) / "labels.npy").unlink()
    with pytest.raises(UserError, match=r"neither images\.npy and labels\.npy nor a folder for each class"):
        opened(tmp_path)


@pytest.mark.parametrize("where", ["nowhere", "~nobody-of-this-name/data", "x" * 5000])
def test_a_folder_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"data = '.*': there is no such folder"):
        open_own_data(where, tmp_path)


# Images.


def test_numbers_of_folders_are_classes(tmp_path: Path) -> None:
    for name, grey in (("2/b.png", 30), ("0/z.JPG", 10), ("2/a.bmp", 20), ("10/c.pgm", 40)):
        picture(tmp_path / name, *[grey] * 4)
    (tmp_path / "2" / "notes.txt").write_text("no image")
    samples = opened(tmp_path)
    assert samples.images.shape == (4, 1, 4, 4)
    assert samples.labels.tolist() == [0, 10, 2, 2]
    np.testing.assert_allclose(greys(samples), [10, 40, 20, 30], atol=2)  # JPEG is not exact


def test_names_of_folders_are_classes_by_their_line(tmp_path: Path) -> None:
    for name in ("cat", "dog", "7", "²"):
        picture(tmp_path / name / "a.png", 1, 2, 3, 4)
    (tmp_path / "classes.txt").write_text("dog\n\n fox \n7\n²\ncat\n", encoding="utf-8")
    assert opened(tmp_path).labels.tolist() == [2, 4, 0, 3]  # 7, cat, dog, ²


@pytest.mark.parametrize(
    ("folder", "classes", "message"),
    [
        ("cat", None, "no class's number"),
        ("cat", "dog\nfox\n", "not in"),
        ("3", "dog\nfox\n", "not in"),
        ("-1", None, "no class's number"),
        ("²", None, "no class's number"),
        ("9" * 20, None, "no class's number"),
        ("cat", "cat\ndog\ncat\n", "'cat' twice"),
        ("cat", b"\xff\xfe", "not text"),
        ("cat", b"\n" * 2**21, "larger than"),
    ],
)
def test_folders_that_are_no_classes(
    tmp_path: Path, folder: str, classes: str | bytes | None, message: str
) -> None:
    picture(tmp_path / folder / "a.png", 1, 2, 3, 4)
    if classes is not None:
        (tmp_path / "classes.txt").write_bytes(classes if isinstance(classes, bytes) else classes.encode())
    with pytest.raises(UserError, match=message):
        opened(tmp_path)


def test_images_are_brought_to_the_size_and_channels_of_the_network(tmp_path: Path) -> None:
    picture(tmp_path / "0" / "a.png", *range(0, 240, 20))
    Image.new("RGBA", (9, 5), (255, 0, 10, 128)).save(tmp_path / "0" / "b.webp", lossless=True)
    samples = opened(tmp_path, COLOUR)
    assert samples.images.shape == (2, 3, 4, 6)
    assert len(np.unique(samples.images[0, :, 0, 0])) == 1  # grey in all channels
    assert samples.images[1, :, 2, 3].tolist() == [255, 0, 10]
    assert opened(tmp_path).images.shape == (2, 1, 4, 4)
    two = chain(convolution("conv", "input", (4, 2, 3, 3)), *pooled("conv"), of=images(2, 4, 4))
    with pytest.raises(UserError, match="takes 2: give arrays"):
        opened(tmp_path, two)


def test_images_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture(tmp_path / "0" / "a.png", 9, 9, 9, 9)
    first = opened(tmp_path)
    monkeypatch.setattr(own_data, "decoded_pixels", lambda *_: pytest.fail("decoded again"))
    again = opened(tmp_path)
    assert isinstance(again.images, np.memmap)
    np.testing.assert_array_equal(first.images, again.images)


def replaced_by_an_older_one(folder: Path) -> None:
    picture(folder / "0" / "a.png", 5, 5, 5, 5, 5)
    os.utime(folder / "0" / "a.png", (1, 1))


def renamed(folder: Path) -> None:
    (folder / "0" / "a.png").rename(folder / "0" / "z.png")


def touched(folder: Path) -> None:
    picture(folder / "0" / "a.png", 5, 5, 5, 5)
    os.utime(folder / "0" / "a.png", (2e9, 2e9))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (touched, [5, 20]),
        (replaced_by_an_older_one, [5, 20]),
        (renamed, [20, 10]),
        (lambda folder: (folder / "0" / "a.png").unlink(), [20]),
        (lambda folder: picture(folder / "0" / "c.png", 7, 7, 7, 7), [10, 20, 7]),
    ],
)
def test_changed_images_are_decoded_again(
    tmp_path: Path, change: Callable[[Path], object], expected: list[int]
) -> None:
    picture(tmp_path / "0" / "a.png", 10, 10, 10, 10)
    picture(tmp_path / "0" / "b.png", 20, 20, 20, 20)
    before = opened(tmp_path)
    change(tmp_path)
    assert greys(opened(tmp_path)) == expected
    assert greys(before) == [10, 20]  # who has them still has them
    assert len(list(tmp_path.glob("*.npy"))) == 1


def test_two_folders_may_share_a_cache(tmp_path: Path) -> None:
    for name, grey in (("one", 1), ("two", 2)):
        os.utime(picture(tmp_path / name / "0" / f"{name}.png", *[grey] * 4), (1, 1))
    one = open_own_data(str(tmp_path / "one"), tmp_path)
    two = open_own_data(str(tmp_path / "two"), tmp_path)
    assert [greys(one(GREY)), greys(two(GREY)), greys(one(GREY))] == [[1], [2], [1]]


def test_a_damaged_cache_is_written_again(tmp_path: Path) -> None:
    picture(tmp_path / "0" / "a.png", 9, 9, 9, 9)
    opened(tmp_path)
    (cache,) = tmp_path.glob("*.npy")
    cache.write_bytes(cache.read_bytes()[:-1])
    assert opened(tmp_path).images.shape == (1, 1, 4, 4)


def test_a_decoding_that_fails_leaves_nothing_and_what_was_there_stays(tmp_path: Path) -> None:
    picture(tmp_path / "0" / "a.png", 9, 9, 9, 9)
    opened(tmp_path)
    before = {file: file.read_bytes() for file in tmp_path.glob("*.npy")}
    (tmp_path / "0" / "b.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"b\.png is no image"):
        opened(tmp_path)
    assert {file: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()} == before


def test_without_pillow_images_are_refused_and_arrays_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    opened(save(tmp_path / "arrays"))
    picture_folder = tmp_path / "images" / "0"
    picture_folder.mkdir(parents=True)
    (picture_folder / "a.png").write_bytes(b"")
    with pytest.raises(UserError, match="pip install pillow"):
        opened(tmp_path / "images")


# Hostile folders. Nothing may hang: a FIFO that is opened would.


@pytest.mark.parametrize("name", ["images.npy", "labels.npy", "classes.txt", "0/a.png"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_not_opened(tmp_path: Path, name: str, make: Callable[[Path], None]) -> None:
    if name.endswith(".npy"):
        (save(tmp_path) / name).unlink()
    else:
        picture(tmp_path / "0" / "b.png", 1, 2, 3, 4)
    make(tmp_path / name)
    if name == "classes.txt" and make is os.mkfifo:
        assert opened(tmp_path).labels.tolist() == [0]  # it is as good as not there
        return
    with pytest.raises(UserError, match=r"data = |no class's number|is no file"):
        opened(tmp_path)


def damaged_images() -> list[tuple[str, bytes]]:
    """Images of every kind, cut and with bytes that are others."""
    random, found = np.random.default_rng(0), []
    pixels = Image.fromarray(random.integers(0, 256, (12, 12, 3), dtype=np.uint8))
    for suffix in ("png", "jpg", "bmp", "webp", "ppm"):
        file = io.BytesIO()
        pixels.save(file, format={"jpg": "jpeg"}.get(suffix, suffix))
        for _ in range(60):
            content = bytearray(file.getvalue()[: random.integers(1, file.tell() + 1)])
            for place in random.integers(0, min(len(content), 64), 3):
                content[place] = random.integers(256)
            found.append((suffix, bytes(content)))
    return found


@pytest.mark.filterwarnings("ignore")
def test_damaged_images_are_decoded_or_refused(tmp_path: Path) -> None:
    refused = 0
    for suffix, content in damaged_images():
        file = tmp_path / "0" / f"a.{suffix}"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)
        try:
            assert opened(tmp_path).images.shape == (1, 1, 4, 4)
        except UserError:
            refused += 1
        file.unlink()
    assert refused > 100


# A function.


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("own_samples")
    monkeypatch.setitem(sys.modules, "own_samples", module)
    return module


def test_a_function_gives_arrays(tmp_path: Path, own: Any) -> None:
    own.give = lambda: (PIXELS, LABELS)
    samples = open_own_data("own_samples:give", tmp_path)(GREY)
    assert samples.images is PIXELS
    assert samples.labels is LABELS
    assert list(tmp_path.iterdir()) == []


def test_a_function_that_gives_something_else_is_refused(tmp_path: Path, own: Any) -> None:
    def broken() -> None:
        raise KeyError("sensor")

    for given, message in (
        (3, "is a int, not a function"),
        (lambda: PIXELS, r"must give \(images, labels\)"),
        (lambda: (PIXELS, LABELS.tolist()), "two NumPy arrays"),
        (lambda: (PIXELS / 255, LABELS), "not float64"),
        (broken, "'own_samples:give' raised KeyError: 'sensor'"),
    ):
        own.give = given
        with pytest.raises(UserError, match=message):
            open_own_data("own_samples:give", tmp_path)
    for name in ("own_samples:take", "not_there:give", "own_samples:", ":"):
        with pytest.raises(UserError, match="data '"):
            open_own_data(name, tmp_path)


# Pages of mapped files.


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_changes_to_a_mapped_array_outlive_a_batch(tmp_path: Path, mode: Any) -> None:
    pixels = np.lib.format.open_memmap(save(tmp_path) / "images.npy", mode=mode)
    if mode != "r":
        pixels[1] = 77
    samples = Samples(pixels, LABELS, np.arange(3))
    for _ in range(2):
        found, labels = samples.gather(np.array([1, 2]))
        assert (found[0] == (PIXELS[1] if mode == "r" else 77)).all()
        np.testing.assert_array_equal(found[1], PIXELS[2])
        assert labels.tolist() == [0, 1]


def test_a_part_or_a_copy_of_a_mapped_array_is_gathered_too(tmp_path: Path) -> None:
    mapped = np.lib.format.open_memmap(save(tmp_path) / "images.npy", mode="r")
    for part in (mapped[1:], mapped[1:].copy(), np.asarray(mapped)[1:]):
        samples = Samples(part, LABELS[1:], np.arange(2))
        for _ in range(2):
            np.testing.assert_array_equal(samples.gather(np.array([1]))[0], PIXELS[2:])


def test_pages_of_a_file_are_given_back(tmp_path: Path) -> None:
    """As the kernel counts them: mapped files are in RssFile."""
    status = Path("/proc/self/status")
    if "RssFile" not in status.read_text():
        pytest.skip("this system does not say how much of mapped files is resident")

    def resident() -> int:
        line = next(line for line in status.read_text().splitlines() if line.startswith("RssFile"))
        return int(line.split()[1]) * 1024

    size = 64 * 2**20
    pixels = np.zeros((size // 4096, 1, 64, 64), np.uint8)
    mapped = opened(save(tmp_path, pixels, np.zeros(len(pixels), np.int64))).images
    before = resident()
    assert int(mapped.max()) == 0
    assert resident() > before + size // 2
    Samples(mapped, np.zeros(len(pixels), np.int64), np.arange(1)).gather(np.arange(1))
    assert resident() < before + size // 8


def test_systems_without_advice_on_memory_gather_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = opened(save(tmp_path))
    monkeypatch.delattr("mmap.MADV_DONTNEED")
    np.testing.assert_array_equal(samples.gather(np.array([1]))[0], PIXELS[1:2])
