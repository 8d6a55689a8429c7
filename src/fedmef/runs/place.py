"""Whether something can be written at a place, before hours of work find out that it cannot."""

import tempfile
from pathlib import Path

from fedmef.errors import UserError
from fedmef.wire.files import exists


def check_place(out: Path) -> None:
    """Raise `UserError` when the folder `out` cannot be made, or nothing can be written into it.

    Asking for permission is not enough: root has it everywhere, on a read-only file system too.
    """
    try:
        there = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
        if not there.is_dir():
            raise UserError(f"{out} cannot be written: {there} is not a folder; choose another --out")
        tempfile.TemporaryDirectory(prefix=".fedmef-", dir=there).cleanup()
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror}; choose another --out") from None


def check_file(file: Path, option: str) -> None:
    """Raise `UserError` when `file` cannot be a file of ours; what is there may be replaced, if it is one.

    Renaming onto a device such as /dev/null would replace the device itself.
    """
    if not exists(file.parent) or not file.parent.is_dir() or (exists(file) and not file.is_file()):
        raise UserError(f"{option} {file}: give a file in a folder that is there")
