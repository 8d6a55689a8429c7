import shutil
from pathlib import Path

import numpy as np
import pytest

from fedmef.data import DATASETS, Dataset, SyntheticImages, cifar10, default_data_dir, load_dataset
from fedmef.data.facts import Facts
from fedmef.data.load import known_facts
from fedmef.errors import UserError

MODULE = """
from fedmef.data import SyntheticImages

number = 3

def mine():
    return SyntheticImages(shape=(1, 4, 4), classes=2, train=4, test=2).make()

def nothing():
    return None
"""


@pytest.fixture
def small_cifar(cifar_folder: Path, published: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of data sets, where CIFAR-10 has batches of 4."""
    read = cifar10.read_cifar10
    monkeypatch.setattr(cifar10, "read_cifar10", lambda folder: read(folder, published))
    return cifar_folder.parent


def test_files_are_decoded_once_and_mapped_ever_after(small_cifar: Path) -> None:
    first = load_dataset("cifar10", small_cifar, download=False)
    shutil.rmtree(small_cifar / "cifar-10-batches-py")
    second = load_dataset("cifar10", small_cifar, download=False)
    assert np.array_equal(first.train.images, second.train.images)
    assert len(second.train) == 20
    assert [entry.name for entry in small_cifar.iterdir()] == ["cifar10.prepared"]


def test_a_damaged_source_leaves_nothing_prepared(small_cifar: Path) -> None:
    (small_cifar / "cifar-10-batches-py" / "test_batch").write_bytes(b"")
    with pytest.raises(UserError, match="test_batch is not the published file"):
        load_dataset("cifar10", small_cifar)
    assert [entry.name for entry in small_cifar.iterdir()] == ["cifar-10-batches-py"]


@pytest.mark.parametrize(
    ("name", "shape", "classes", "train"),
    [
        ("cifar10", (3, 32, 32), 10, 50_000),
        ("cinic10", (3, 32, 32), 10, 90_000),
        ("tiny_imagenet", (3, 64, 64), 200, 100_000),
    ],
)
def test_what_is_known_of_a_data_set_needs_no_files(
    name: str, shape: tuple[int, int, int], classes: int, train: int
) -> None:
    assert known_facts(name) == Facts(shape, classes, train)


@pytest.mark.parametrize("name", ["digits", "synthetic", "own_dataset_module:mine"])
def test_nothing_is_known_of_what_must_be_made(name: str) -> None:
    assert known_facts(name) is None


@pytest.mark.parametrize("name", ["cifar10", "cinic10", "tiny_imagenet"])
def test_missing_files_are_named_with_the_command_that_gets_them(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=rf"expected the folder {tmp_path}.*run `fedmef data {name}`"):
        load_dataset(name, tmp_path, download=False)


def test_the_digits_need_no_folder(tmp_path: Path) -> None:
    assert load_dataset("digits", tmp_path / "none", download=False).name == "digits"
    assert not (tmp_path / "none").exists()


def test_synthetic_images_take_their_options() -> None:
    dataset = load_dataset(
        "synthetic", synthetic=SyntheticImages(shape=(1, 4, 4), classes=2, train=6, test=2)
    )
    assert (dataset.shape, len(dataset.train)) == ((1, 4, 4), 6)


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown dataset 'cifar-10': did you mean 'cifar10'"):
        load_dataset("cifar-10")
    with pytest.raises(UserError, match=r"your own: .*got its data from Python, give dataset=... to fedmef"):
        load_dataset("mine")
    assert sorted(DATASETS) == [
        "cifar10",
        "cifar100",
        "cinic10",
        "digits",
        "fashion_mnist",
        "femnist",
        "synthetic",
        "tiny_imagenet",
    ]


def test_the_environment_decides_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDMEF_DATA", str(tmp_path))
    assert default_data_dir() == tmp_path
    monkeypatch.setenv("FEDMEF_DATA", "")
    assert default_data_dir() == Path.home() / ".cache" / "fedmef"


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_dataset_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("own_module")
def test_a_users_own_function_gives_the_dataset() -> None:
    dataset = load_dataset("own_dataset_module:mine")
    assert isinstance(dataset, Dataset)
    assert dataset.shape == (1, 4, 4)


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("number", "is a int, not a function"),
        ("nothing", "returned a NoneType: return a fedmef.data.Dataset"),
    ],
)
def test_a_users_own_object_of_another_kind_is_refused(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_dataset(f"own_dataset_module:{name}")
