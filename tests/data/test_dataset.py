import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedmef.data import Dataset, Split
from fedmef.data.statistics import channel_statistics
from fedmef.errors import UserError
from fedmef.sparsity.arrays import Array, Integers

IMAGES = np.zeros((2, 1, 3, 3), dtype=np.uint8)
LABELS = np.array([0, 1])


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (
            IMAGES.astype(np.float32),
            LABELS,
            r"images must be uint8 \[N, C, H, W\], not float32 \[2, 1, 3, 3\]",
        ),
        (IMAGES[0], LABELS, r"images must be uint8 \[N, C, H, W\], not uint8 \[1, 3, 3\]"),
        (IMAGES, LABELS.astype(np.int32), r"labels must be int64 \[N\], not int32 \[2\]"),
        (IMAGES, LABELS[:1], "2 images have 1 labels"),
        (IMAGES[:0], LABELS[:0], "must not be empty"),
        (IMAGES.tolist(), LABELS, "must be NumPy arrays"),
        (torch.from_numpy(IMAGES), LABELS, r"must be NumPy arrays: tensor\.numpy\(\) makes one"),
    ],
)
def test_a_split_refuses_what_does_not_fit(images: Array, labels: Integers, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Split(images, labels)


@pytest.mark.parametrize("label", [-1, 2])
def test_a_dataset_refuses_labels_out_of_range(label: int) -> None:
    good, bad = Split(IMAGES, LABELS), Split(IMAGES, np.array([0, label]))
    with pytest.raises(UserError, match=r"must be in 0\.\.1"):
        Dataset("mine", good, bad, classes=2)


def test_a_dataset_refuses_test_images_of_another_shape() -> None:
    with pytest.raises(
        UserError, match=r"'mine': training images are \[1, 3, 3\] but test images \[1, 3, 2\]"
    ):
        Dataset("mine", Split(IMAGES, LABELS), Split(IMAGES[..., :2], LABELS), classes=2)


def test_statistics_are_those_of_the_training_images_and_can_be_given(small: Dataset) -> None:
    assert small.statistics == channel_statistics(small.train.images)
    known = ((0.5, 0.5), (0.25, 0.25))
    assert Dataset("mine", small.train, small.test, 3, known).statistics == known


def test_what_is_written_is_what_is_opened(small: Dataset, tmp_path: Path) -> None:
    small.write(tmp_path / "new" / "small.prepared")
    opened = Dataset.open(tmp_path / "new" / "small.prepared")
    assert (opened.name, opened.classes, opened.shape) == ("synthetic", 3, (2, 6, 5))
    for mine, theirs in ((small.train, opened.train), (small.test, opened.test)):
        assert np.array_equal(mine.images, theirs.images)
        assert np.array_equal(mine.labels, theirs.labels)
    assert opened.statistics == small.statistics


def test_writing_to_an_opened_image_never_reaches_the_file(small: Dataset, tmp_path: Path) -> None:
    small.write(tmp_path / "small")
    with pytest.raises(ValueError, match="read-only"):
        Dataset.open(tmp_path / "small").train.images.fill(7)
    assert np.array_equal(Dataset.open(tmp_path / "small").train.images, small.train.images)


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


@pytest.mark.parametrize(
    "change",
    [
        {"classes": 1},
        {"classes": float("inf")},
        {"classes": None},
        {"mean": [0.5]},
        {"std": [0.0, 1.0]},
        {"std": [float("nan"), 1.0]},
        {"mean": ["x", 0]},
        {"mean": [10**400, 0]},
        {"mean": 0.5},
    ],
    ids=lambda change: str(change)[:20],
)
def test_a_description_that_does_not_fit_is_damage(
    small: Dataset, tmp_path: Path, change: dict[str, object]
) -> None:
    small.write(tmp_path / "small")
    file = tmp_path / "small" / "description.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(UserError, match=r"(description\.json|small) is damaged"):
        Dataset.open(tmp_path / "small")


def test_users_and_class_names_are_written_and_opened(small: Dataset, tmp_path: Path) -> None:
    users = np.array([f"user {number % 4}" for number in range(30)])
    replace(small, users=users, class_names=("a", "b", "ç")).write(tmp_path / "mine")
    opened = Dataset.open(tmp_path / "mine")
    assert opened.users is not None
    assert np.array_equal(opened.users, users)
    assert opened.class_names == ("a", "b", "ç")
    assert small.class_names is None
    assert small.users is None


@pytest.mark.parametrize("users", [["ann", "bob"] * 15, tuple(range(30))])
def test_users_may_be_a_list(small: Dataset, users: Any) -> None:
    found = replace(small, users=users).users
    assert isinstance(found, np.ndarray)
    assert found.tolist() == list(users)


def test_what_is_changed_of_an_opened_data_set_is_in_no_folder(small: Dataset, tmp_path: Path) -> None:
    small.write(tmp_path / "small")
    opened = Dataset.open(tmp_path / "small")
    assert opened.folder == tmp_path / "small"
    assert replace(opened, train=opened.test).folder is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"users": np.arange(29)}, "30 training images have 29 users: give one for each"),
        (
            {"users": np.arange(30.0)},
            r"users must be integers or strings \[N\], a list or an array, not float64",
        ),
        ({"users": ["a", 1] * 15}, "users must be integers or strings .* not object"),
        ({"users": ["a"] * 29}, "30 training images have 29 users"),
        ({"users": "a" * 30}, "users must be integers or strings .* not a str"),
        ({"users": np.array([None] * 30)}, "not object"),
        ({"class_names": ("a", "b")}, "class_names has 2 names, but there are 3 classes"),
        ({"class_names": ("a", "b", "")}, "each must have 1 to 200 characters"),
        ({"class_names": "abc"}, "class_names must be a list of strings"),
    ],
)
def test_wrong_users_and_class_names_are_refused(small: Dataset, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        replace(small, **wrong)


def test_a_damaged_folder_of_the_users_own_is_never_to_be_deleted(small: Dataset, tmp_path: Path) -> None:
    small.write(tmp_path / "mine")
    (tmp_path / "mine" / "description.json").write_text("[]")
    with pytest.raises(UserError, match=r"is damaged .*: write it again") as caught:
        Dataset.open(tmp_path / "mine")
    assert "delete" not in str(caught.value)
