import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fedmef.data import Dataset, Split
from fedmef.data.statistics import channel_statistics
from fedmef.errors import UserError

IMAGES = torch.zeros(2, 1, 3, 3, dtype=torch.uint8)
LABELS = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (IMAGES.float(), LABELS, r"images must be uint8 \[N, C, H, W\], not float32 \[2, 1, 3, 3\]"),
        (IMAGES[0], LABELS, r"images must be uint8 \[N, C, H, W\], not uint8 \[1, 3, 3\]"),
        (IMAGES, LABELS.int(), r"labels must be int64 \[N\], not int32 \[2\]"),
        (IMAGES, LABELS[:1], "2 images have 1 labels"),
        (IMAGES[:0], LABELS[:0], "must not be empty"),
    ],
)
def test_a_split_refuses_what_does_not_fit(images: torch.Tensor, labels: torch.Tensor, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Split(images, labels)


@pytest.mark.parametrize("label", [-1, 2])
def test_a_dataset_refuses_labels_out_of_range(label: int) -> None:
    good, bad = Split(IMAGES, LABELS), Split(IMAGES, torch.tensor([0, label]))
    with pytest.raises(UserError, match=r"must be in 0\.\.1"):
        Dataset("mine", good, bad, classes=2)


def test_a_dataset_refuses_test_images_of_another_shape() -> None:
    with pytest.raises(
        UserError, match=r"'mine': training images are \[1, 3, 3\] but test images \[1, 3, 2\]"
    ):
        Dataset("mine", Split(IMAGES, LABELS), Split(IMAGES[..., :2], LABELS), classes=2)


def test_statistics_of_two_values_are_their_middle_and_half_distance() -> None:
    images = torch.tensor([[0, 51], [255, 51]], dtype=torch.uint8).reshape(2, 2, 1, 1)
    mean, std = channel_statistics(images)
    torch.testing.assert_close(mean, torch.tensor([0.5, 0.2]))
    torch.testing.assert_close(std, torch.tensor([0.5, 1e-6]))


def test_statistics_agree_with_numpy_over_many_chunks() -> None:
    images = torch.randint(
        256, (3000, 2, 3, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    mean, std = channel_statistics(images)
    floats = images.numpy() / 255
    np.testing.assert_allclose(mean, floats.mean((0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(std, floats.std((0, 2, 3)), rtol=1e-6)


def test_what_is_written_is_what_is_opened(small: Dataset, tmp_path: Path) -> None:
    small.write(tmp_path / "new" / "small.prepared")
    opened = Dataset.open(tmp_path / "new" / "small.prepared")
    assert (opened.name, opened.classes, opened.shape) == ("synthetic", 3, (2, 6, 5))
    for mine, theirs in ((small.train, opened.train), (small.test, opened.test)):
        assert torch.equal(mine.images, theirs.images)
        assert torch.equal(mine.labels, theirs.labels)
    assert [list(values) for values in opened.statistics()] == [list(values) for values in small.statistics()]


def test_writing_to_an_opened_image_never_reaches_the_file(small: Dataset, tmp_path: Path) -> None:
    small.write(tmp_path / "small")
    Dataset.open(tmp_path / "small").train.images.fill_(7)
    assert torch.equal(Dataset.open(tmp_path / "small").train.images, small.train.images)


def test_writing_over_a_folder_is_refused(small: Dataset, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="exists already"):
        small.write(tmp_path)


def test_a_write_that_fails_leaves_nothing(
    small: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(UserError, match="No space left on device"):
        small.write(tmp_path / "small")
    assert list(tmp_path.iterdir()) == []


def test_the_first_of_two_writers_wins(
    small: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.write(tmp_path / "small")
    monkeypatch.setattr(Path, "exists", lambda _: False)  # as the slower one saw it when it began
    Dataset("late", small.train, small.test, small.classes).write(tmp_path / "small")
    assert Dataset.open(tmp_path / "small").name == "synthetic"
    assert len(list(tmp_path.iterdir())) == 1


def test_opening_a_missing_folder_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no data set in .*: run `fedmef data cifar10`"):
        Dataset.open(tmp_path / "cifar10.prepared")


@pytest.mark.parametrize("file", ["train_images.npy", "test_labels.npy", "description.json"])
@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "junk"])
def test_a_damaged_file_is_named_with_the_remedy(
    small: Dataset, tmp_path: Path, file: str, damage: str
) -> None:
    folder = tmp_path / "cifar10.prepared"
    small.write(folder)
    path = folder / file
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes({"empty": b"", "truncated": content[:-5], "junk": b"\xff\x00junk"}[damage])
    with pytest.raises(UserError) as caught:
        Dataset.open(folder)
    message = str(caught.value)
    assert f"{path} is damaged" in message
    assert f"delete the folder {folder} and run `fedmef data cifar10`" in message
    assert "\n" not in message


@pytest.mark.parametrize("change", [{"classes": 1}, {"mean": [0.5]}, {"std": [0.0, 1.0]}, {"mean": ["x", 0]}])
def test_a_description_that_does_not_fit_is_damage(
    small: Dataset, tmp_path: Path, change: dict[str, object]
) -> None:
    small.write(tmp_path / "small")
    file = tmp_path / "small" / "description.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(UserError, match=r"description\.json is damaged"):
        Dataset.open(tmp_path / "small")
