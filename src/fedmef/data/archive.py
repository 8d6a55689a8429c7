"""A data set's official archive: found unpacked, or found packed, or downloaded."""

import hashlib
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlparse

from fedmef.data.atomic_folder import atomic_folder
from fedmef.errors import FedmefError, UserError, printable


@dataclass(frozen=True)
class Archive:
    """Where an archive is, what it must hash to, and which folder its files belong in."""

    dataset: str
    url: str
    md5: str
    folder: str

    @property
    def file_name(self) -> str:
        """The archive's own name."""
        return Path(urlparse(self.url).path).name


@dataclass(frozen=True)
class Files:
    """The same of a data set that is published as single files: each is named below `url`, with its hash."""

    dataset: str
    url: str
    md5: Mapping[str, str]
    folder: str


@dataclass(frozen=True)
class Local:
    """A data set that nobody publishes as files: its folder is the user's to make, as `remedy` says."""

    dataset: str
    folder: str
    remedy: str


def obtain(archive: Archive | Files | Local, data_dir: Path, *, download: bool) -> Path:
    """The folder with the archive's files. Unpacks, and downloads if that is allowed, what is missing."""
    folder = data_dir / archive.folder
    if isinstance(archive, Local):
        if not folder.is_dir():
            raise UserError(
                f"dataset '{archive.dataset}' is not there: expected the folder {folder}; {archive.remedy}, "
                "or set FEDMEF_DATA"
            )
        return folder
    if isinstance(archive, Files):
        for name, md5 in archive.md5.items():
            if not _is_intact(folder / name, md5):
                one = Archive(archive.dataset, archive.url + name, md5, archive.folder)
                if not download:
                    raise _missing(one, folder, folder / name)
                _download(one, folder / name)
        return folder
    if folder.is_dir():
        return folder
    packed = data_dir / archive.file_name
    if not _is_intact(packed, archive.md5):
        if not download:
            raise _missing(archive, folder, packed)
        _download(archive, packed)
    _unpack(packed, folder)
    return folder


def _is_intact(packed: Path, md5: str) -> bool:
    if not packed.is_file():
        return False
    with packed.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest() == md5


def _missing(archive: Archive, folder: Path, packed: Path) -> UserError:
    if packed.is_file():
        return UserError(
            f"{packed} is damaged (its md5 is not {archive.md5}): "
            f"delete it and run `fedmef data {archive.dataset}`"
        )
    return UserError(
        f"dataset '{archive.dataset}' is not there: expected the folder {folder}; "
        f"run `fedmef data {archive.dataset}` to download it, or set FEDMEF_DATA"
    )


def _download(archive: Archive, packed: Path) -> None:
    import pooch  # noqa: PLC0415  (needed once in a data set's life)

    print(printable(f"downloading {archive.url} to {packed}"), file=sys.stderr)
    pooch.get_logger().setLevel("WARNING")  # it would say the same again
    try:
        pooch.retrieve(
            archive.url,
            known_hash=f"md5:{archive.md5}",
            fname=packed.name,
            path=packed.parent,
            downloader=pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), chunk_size=1 << 18),
        )
    # requests' errors are OSErrors; ValueError is pooch's for a wrong hash.
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise FedmefError(
            f"cannot download {archive.url} ({reason}): try again, "
            f"or get the file yourself and put it at {packed}"
        ) from error


def _unpack(packed: Path, folder: Path) -> None:
    """Unpack an archive whose md5 was right, so that it holds nothing but what was published."""
    print(printable(f"unpacking {packed} to {folder}"), file=sys.stderr)
    with atomic_folder(folder) as unfinished:
        try:
            if packed.suffix == ".zip":
                with zipfile.ZipFile(packed) as zipped:
                    zipped.extractall(unfinished)
            else:
                with tarfile.open(packed, "r:gz") as tar:
                    tar.extractall(unfinished, filter="data")
        except OSError as error:
            raise UserError(f"cannot unpack {packed} ({error}): make room in {folder.parent}") from error
        # Most archives hold one folder of that name; CINIC-10's holds its contents.
        inner = unfinished / folder.name
        if inner.is_dir():
            for entry in inner.iterdir():
                entry.rename(unfinished / entry.name)
            inner.rmdir()
