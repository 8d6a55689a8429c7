"""A folder that appears under its name only when all of it is there."""

import errno
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedmef.errors import UserError


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """A new folder to fill, renamed to `folder` at the end, or gone if filling it fails.

    Should another process make the same one meanwhile, the first to end wins and the other's is dropped.
    """
    unfinished = folder.parent / f".{folder.name}.{secrets.token_hex(4)}"
    try:
        unfinished.mkdir(parents=True)
        yield unfinished
        unfinished.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise UserError(
                f"cannot write {folder} ({error}): make room, or choose another folder"
            ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
