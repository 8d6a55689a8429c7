"""A scratch folder that goes with its process, and at the latest when the next one starts.

Its owner holds a lock on a file in it, which the system takes away from a process that is killed. The file
has the random token of the folder's name: nothing else is ever removed, whatever it is called. Windows has no
such locks: there the folders of killed processes stay.
"""

import os
import secrets
import shutil
import stat
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import IO

PREFIX, LOCK = "fedmef-scratch-", "lock"
TOKEN_BYTES = 16


class Scratch:
    """A new folder for this process alone; those of killed processes are removed."""

    def __init__(self) -> None:
        remove_abandoned()
        token = secrets.token_hex(TOKEN_BYTES)
        unlocked = Path(tempfile.gettempdir()) / f".{PREFIX}{token}"
        unlocked.mkdir(mode=0o700)
        self._lock = (unlocked / LOCK).open("xb", buffering=0)
        self._lock.write(token.encode())
        _lock(self._lock)
        self.folder = unlocked.rename(unlocked.with_name(unlocked.name[1:]))  # now it may be looked at

    def remove(self) -> None:
        """Remove it and all that is in it."""
        remove_scratch(self.folder)
        self._lock.close()


def remove_scratch(folder: Path) -> None:
    """Remove a folder that one of our processes made for this purpose; anything else stays."""
    if _is_ours(folder):
        shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned() -> None:
    """Remove the scratch folders whose process is gone."""
    if find_spec("fcntl") is None:
        return
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if not _is_ours(folder):
            continue
        try:
            with (folder / LOCK).open("r+b") as lock:
                _lock(lock)
                remove_scratch(folder)
        except OSError:
            continue


def _is_ours(folder: Path) -> bool:
    """This user's folder, no link, with the token of its name in a file that is this user's too."""
    try:
        there, marker = folder.lstat(), (folder / LOCK).lstat()
        if not (stat.S_ISDIR(there.st_mode) and stat.S_ISREG(marker.st_mode)):
            return False
        if not there.st_uid == marker.st_uid == os.getuid():
            return False
        with (folder / LOCK).open("rb") as file:
            token = file.read(2 * TOKEN_BYTES + 1).decode()
    except (OSError, ValueError):
        return False
    return len(token) == 2 * TOKEN_BYTES and folder.name == f"{PREFIX}{token}"


def _lock(file: IO[bytes]) -> None:
    """Raises `OSError` when somebody else holds the lock."""
    try:
        import fcntl  # noqa: PLC0415  (not on Windows)
    except ImportError:
        return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
