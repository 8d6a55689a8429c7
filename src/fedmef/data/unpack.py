"""Unpacking an archive that could be hostile: nothing is written outside of the folder."""

import tarfile
import zipfile
import zlib
from pathlib import Path

from fedmef.errors import UserError


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a .tar.gz or .zip file into a folder."""
    try:
        if archive.suffix == ".zip":
            _unpack_zip(archive, folder)
        else:
            _unpack_tar(archive, folder)
    except (tarfile.FilterError, _EscapeError) as error:
        raise UserError(
            f"{archive} is not safe to unpack ({error}): delete it, and get it from its official source"
        ) from error
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError) as error:
        raise UserError(
            f"cannot unpack {archive} ({error}): make room in {folder.parent}, "
            "or delete the file and try again"
        ) from error


class _EscapeError(Exception):
    pass


def _unpack_tar(archive: Path, folder: Path) -> None:
    if not hasattr(tarfile, "data_filter"):
        raise UserError(
            f"unpacking safely needs Python 3.11.4 or later: update it, or unpack {archive} by hand"
        )
    with tarfile.open(archive, "r:gz") as tar:
        tar.extractall(folder, filter="data")


def _unpack_zip(archive: Path, folder: Path) -> None:
    root = folder.resolve()
    with zipfile.ZipFile(archive) as packed:
        for member in packed.namelist():
            # zipfile would quietly rename such a member; an archive that has one is not what it should be.
            if not (root / member).resolve().is_relative_to(root):
                raise _EscapeError(f"'{member}' would be outside of the folder")
        packed.extractall(root)
