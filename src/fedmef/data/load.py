"""Finding a data set by its name: built in, downloaded, in a folder, or what a user's function gives."""

import os
import sys
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from fedmef.data.array_folder import DESCRIPTION
from fedmef.data.convert import SUFFIXES
from fedmef.data.dataset import Dataset
from fedmef.data.digits import read_digits
from fedmef.data.facts import Facts
from fedmef.data.synthetic import SyntheticImages
from fedmef.errors import UserError, printable, unknown_name
from fedmef.experiment.names import load_object
from fedmef.wire.files import exists


@dataclass(frozen=True)
class FromFiles:
    """A data set of files, most of them downloaded: its module has FACTS, an ARCHIVE, and what reads it."""

    module: str
    reader: str

    def part(self, name: str) -> Any:
        """Something of the module, which is imported now: archives and images need packages of their own."""
        return getattr(import_module(f"fedmef.data.{self.module}"), name)


FILES = {
    "cifar10": FromFiles("cifar10", "read_cifar10"),
    "cifar100": FromFiles("cifar100", "read_cifar100"),
    "cinic10": FromFiles("cinic10", "read_cinic10"),
    "fashion_mnist": FromFiles("fashion_mnist", "read_fashion_mnist"),
    "femnist": FromFiles("femnist", "read_femnist"),
    "tiny_imagenet": FromFiles("tiny_imagenet", "read_tiny_imagenet"),
}
DATASETS = ("digits", *FILES, "synthetic")
OWN = (
    "your own: ./folder, or module:function; if the run got its data from Python, give dataset=... to "
    "fedmef.resume"
)
MOST_LOOKED_AT = 1000  # files, to say what a folder holds


def default_data_dir() -> Path:
    """FEDMEF_DATA if it is set, otherwise ~/.cache/fedmef."""
    return Path(os.environ.get("FEDMEF_DATA") or "~/.cache/fedmef").expanduser()


def names_folder(name: str) -> bool:
    """Whether a data set's name is a folder's."""
    return "/" in name or name.startswith(("~", "."))


def known_facts(name: str) -> Facts | None:
    """What is known of a data set without fetching it."""
    facts: Facts | None = FILES[name].part("FACTS") if name in FILES else None
    return facts


def load_dataset(
    name: str,
    data_dir: Path | None = None,
    *,
    download: bool = True,
    synthetic: SyntheticImages | None = None,
) -> Dataset:
    """The data set of that name, of a folder that `Dataset.write` wrote, or that a user's function returns.

    A folder has a slash in its name, or begins with ~ or a dot; a function is "package.module:function".
    Files are decoded once, to `data_dir/<name>.prepared`, and mapped from there ever after.
    """
    if ":" in name:
        return _from_user(name)
    if names_folder(name):
        return _from_folder(name)
    if name == "digits":
        return read_digits()
    if name == "synthetic":
        return (synthetic or SyntheticImages()).make()
    if name not in FILES:
        if name and exists(Path(name)):
            known = Path(name, DESCRIPTION).exists()
            raise UserError(
                f"dataset '{name}': {_no_data_set(Path(name)) if not known else f'write ./{name}'}"
            )
        raise unknown_name("dataset", name, DATASETS, OWN)
    return _from_files(FILES[name], (data_dir or default_data_dir()).expanduser(), download)


def _from_files(source: FromFiles, data_dir: Path, download: bool) -> Dataset:
    archive = source.part("ARCHIVE")
    prepared = data_dir / f"{archive.dataset}.prepared"
    if data_dir.exists() and not data_dir.is_dir():
        raise UserError(f"data_dir = '{data_dir}': that is a file; name a folder, which is made if need be")
    if not prepared.exists():
        from fedmef.data.archive import obtain  # noqa: PLC0415  (what is prepared needs no pooch)

        folder = obtain(archive, data_dir, download=download)
        dataset: Dataset = source.part(source.reader)(folder)
        print(printable(f"preparing {prepared} from {folder}"), file=sys.stderr)
        dataset.write(prepared)
    return Dataset.open(prepared)


def _from_folder(name: str) -> Dataset:
    try:
        folder = Path(name).expanduser()
    except RuntimeError:  # of a user that there is not
        folder = Path(name)
    if not exists(folder / DESCRIPTION):
        raise UserError(f"dataset '{name}': {_no_data_set(folder)}")
    return Dataset.open(folder)


def _no_data_set(folder: Path) -> str:
    """What is in a folder that `Dataset.write` did not write, and how to make a data set of it."""
    if not exists(folder):
        return "there is no such folder; check its name, or make it (docs/data.md)"
    if not folder.is_dir():
        return "that is a file; name a folder that Dataset.write wrote (docs/data.md)"
    files = [file.suffix.lower() for file in islice(folder.rglob("*"), MOST_LOOKED_AT)]
    root = folder.parent if folder.name in ("train", "test") else folder
    out = f"{root.absolute().name.removesuffix('.data')}.data"
    write = f".write('{out}'), then --dataset ./{out} (docs/data.md)"
    if any(suffix in SUFFIXES for suffix in files):
        return (
            f"images in {root}/train/CLASS and {root}/test/CLASS are converted once, in Python: "
            f"fedmef.data.from_image_folder('{root}', size=(32, 32)){write}"
        )
    if ".npy" in files and not (folder / "train_images.npy").exists():
        return f"arrays are converted once, in Python: fedmef.data.from_arrays(...){write}"
    return f"it has no {DESCRIPTION}; write it again (Dataset.write, docs/data.md)"


def _from_user(name: str) -> Dataset:
    function = load_object("dataset", name)
    if not callable(function):
        raise UserError(f"dataset '{name}' is a {type(function).__name__}, not a function")
    try:
        dataset = function()
    except UserError as error:
        named = str(error).startswith("dataset ")
        raise UserError(str(error) if named else f"dataset '{name}': {error}") from error
    except Exception as error:
        raise UserError(
            f"dataset '{name}': called without arguments, it raised {type(error).__name__}: {error} "
            "(--debug shows where)"
        ) from error
    if not isinstance(dataset, Dataset):
        raise UserError(f"dataset '{name}' returned a {type(dataset).__name__}: return a fedmef.data.Dataset")
    return dataset
