"""Finding a data set by its name: built in, on disk, downloaded, or a user's own."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedmef.data import cifar10, cinic10, tiny_imagenet
from fedmef.data.archive import Archive, obtain
from fedmef.data.dataset import Dataset
from fedmef.data.digits import read_digits
from fedmef.data.progress import say
from fedmef.data.synthetic import SyntheticImages
from fedmef.errors import UserError, unknown_name
from fedmef.experiment.names import load_object


@dataclass(frozen=True)
class Request:
    """What is asked for besides the name."""

    data_dir: Path
    download: bool
    synthetic: SyntheticImages


DATASETS: dict[str, Callable[[Request], Dataset]] = {
    "digits": lambda _: read_digits(),
    "cifar10": lambda request: _from_files(cifar10.ARCHIVE, cifar10.read_cifar10, request),
    "cinic10": lambda request: _from_files(cinic10.ARCHIVE, cinic10.read_cinic10, request),
    "tiny_imagenet": lambda request: _from_files(
        tiny_imagenet.ARCHIVE, tiny_imagenet.read_tiny_imagenet, request
    ),
    "synthetic": lambda request: request.synthetic.make(),
}


def default_data_dir() -> Path:
    """FEDMEF_DATA if it is set, otherwise ~/.cache/fedmef."""
    return Path(os.environ.get("FEDMEF_DATA") or "~/.cache/fedmef").expanduser()


def load_dataset(
    name: str,
    data_dir: Path | None = None,
    *,
    download: bool = True,
    synthetic: SyntheticImages | None = None,
) -> Dataset:
    """The data set of that name, or the one that a user's function "package.module:function" returns.

    Files are decoded once, to `data_dir/<name>.prepared`, and mapped from there ever after.
    """
    if ":" in name:
        return _from_user(name)
    if name not in DATASETS:
        raise unknown_name("dataset", name, DATASETS)
    return DATASETS[name](
        Request((data_dir or default_data_dir()).expanduser(), download, synthetic or SyntheticImages())
    )


def _from_files(archive: Archive, read: Callable[[Path], Dataset], request: Request) -> Dataset:
    prepared = request.data_dir / f"{archive.dataset}.prepared"
    if not prepared.exists():
        source = obtain(archive, request.data_dir, download=request.download)
        dataset = read(source)
        say(f"preparing {prepared} from {source}")
        dataset.write(prepared)
    return Dataset.open(prepared)


def _from_user(name: str) -> Dataset:
    function = load_object("dataset", name)
    if not callable(function):
        raise UserError(f"dataset '{name}' is a {type(function).__name__}, not a function")
    dataset = function()
    if not isinstance(dataset, Dataset):
        raise UserError(f"dataset '{name}' returned a {type(dataset).__name__}: return a fedmef.data.Dataset")
    return dataset
