"""LEAF's files, made by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

import fedmef
from fedmef.data import load_dataset
from fedmef.data.femnist import read_femnist
from fedmef.errors import UserError
from fedmef.experiment.settings import Experiment

GREY = [0.2] * 783 + [1.0]


def leaf(writers: dict[str, tuple[list[Any], list[Any]]]) -> dict[str, Any]:
    return {
        "users": list(writers),
        "num_samples": [len(labels) for _, labels in writers.values()],
        "user_data": {name: {"x": rows, "y": labels} for name, (rows, labels) in writers.items()},
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three writers in two files, one without images, and one test image."""
    contents = {
        "train/all_data_0_niid_0_keep_0_train_9.json": {
            "f0001_41": ([GREY, GREY], [0, 61]),
            "f0002_05": ([GREY], [10]),
        },
        "train/all_data_1_niid_0_keep_0_train_9.json": {"f0000_14": ([GREY], [36]), "f0003_00": ([], [])},
        "test/all_data_0_niid_0_keep_0_test_9.json": {"f0001_41": ([GREY], [9])},
    }
    for name, writers in contents.items():
        file = tmp_path / "femnist" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(leaf(writers)))
    return tmp_path / "femnist"


def test_a_writer_who_is_named_twice_is_not_read_twice(folder: Path) -> None:
    """A small file could have any number of images otherwise."""
    file = folder / "test/all_data_0_niid_0_keep_0_test_9.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "users": content["users"] * 2}))
    with pytest.raises(UserError, match="it names a writer twice"):
        read_femnist(folder)
    file.write_text(json.dumps({"users": [5], "user_data": []}))
    with pytest.raises(UserError, match="IndexError"):
        read_femnist(folder)


def test_images_labels_and_writers_are_read(folder: Path) -> None:
    data = read_femnist(folder)
    assert (len(data.train), len(data.test), data.shape, data.classes) == (4, 1, (1, 28, 28), 62)
    assert data.train.images[0, 0, 27, 26:].tolist() == [51, 255]
    assert data.train.labels.tolist() == [0, 61, 10, 36]
    assert data.class_names is not None
    assert [data.class_names[label] for label in data.train.labels] == ["0", "z", "A", "a"]
    assert data.users is not None
    assert data.users.tolist() == ["f0001_41", "f0001_41", "f0002_05", "f0000_14"]


def test_the_files_are_converted_once_and_the_writers_are_the_devices(folder: Path, tmp_path: Path) -> None:
    data = load_dataset("femnist", tmp_path)
    assert data.folder == tmp_path / "femnist.prepared"
    experiment = Experiment(
        dataset="femnist",
        data_dir=tmp_path,
        partition="natural",
        devices_per_round=2,
        rounds=1,
        local_epochs=1,
        width=4,
        engine="inline",
    )
    run = fedmef.run(experiment, tmp_path / "run")
    assert (run.experiment.devices, run.experiment.dataset) == (3, "femnist")


def test_what_is_not_there_is_said_with_where_it_comes_from(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"dataset 'femnist' is not there: expected the folder .*preprocess"):
        load_dataset("femnist", tmp_path / "elsewhere")
    next((folder / "test").iterdir()).unlink()
    with pytest.raises(UserError, match=r"test has no \*\.json file: make it with LEAF"):
        load_dataset("femnist", tmp_path)
    assert not (tmp_path / "femnist.prepared").exists()


DAMAGED: dict[str, str] = {
    "": "JSONDecodeError",
    "[1]": "TypeError",
    "[" * 100_000: "RecursionError",
    '{"users": ["a"], "user_data": {}}': "KeyError",
    '{"users": [["a"]], "user_data": {}}': "TypeError",
    '{"users": [], "user_data": {}}': "there is no image in any file",
    json.dumps(leaf({"": ([GREY], [1])})): "a writer's name must have",
    json.dumps(leaf({"a" * 101: ([GREY], [1])})): "a writer's name must have",
    json.dumps(leaf({"a": ([GREY[1:]], [1])})): "x of 'a' must be rows of 784",
    json.dumps(leaf({"a": ([[2.0] * 784], [1])})): "x of 'a' must be",
    json.dumps(leaf({"a": ([[float("nan")] * 784], [1])})): "x of 'a' must be",
    json.dumps(leaf({"a": ([[None] * 784], [1])})): "x of 'a' must be",
    json.dumps(leaf({"a": ([["x"] * 784], [1])})): "x of 'a' must be",
    json.dumps(leaf({"a": ([GREY], [62])})): "y of 'a' must be a class from 0 to 61",
    json.dumps(leaf({"a": ([GREY], [True])})): "y of 'a' must be",
    json.dumps(leaf({"a": ([GREY], [1, 2])})): "y of 'a' must be",
    json.dumps(leaf({"a": ([GREY], [])})): "y of 'a' must be",
}


@pytest.mark.parametrize("content", DAMAGED, ids=lambda content: content[:30])
def test_a_damaged_file_is_named(folder: Path, content: str) -> None:
    file = next((folder / "test").iterdir())
    file.write_text(content)
    with pytest.raises(UserError, match=rf"{file.name} is no file of LEAF's .*{DAMAGED[content]}"):
        read_femnist(folder)


def test_a_file_that_is_too_large_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedmef.data.femnist.LARGEST", 1000)
    with pytest.raises(UserError, match="is larger than 1,000 bytes"):
        read_femnist(folder)
