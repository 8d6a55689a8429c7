"""A scratch folder that goes with its process, and at the latest when the next one starts.

Its owner holds a lock on a file in it, which the system takes away from a process that is killed. Windows has
no such locks: there the folders of killed processes stay.
"""

import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import IO

PREFIX, LOCK = "fedmef-", "lock"


class Scratch:
    """A new folder for this process alone; those of killed processes are removed."""

    def __init__(self) -> None:
        remove_abandoned()
        unlocked = Path(tempfile.mkdtemp(prefix=f".{PREFIX}"))
        self._lock = (unlocked / LOCK).open("wb")
        _lock(self._lock)
        self.folder = unlocked.rename(unlocked.with_name(unlocked.name[1:]))  # now it may be looked at

    def remove(self) -> None:
        """Remove it and all that is in it."""
        self._lock.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def remove_abandoned() -> None:
    """Remove the scratch folders whose process is gone; those of others cannot be opened and stay."""
    if find_spec("fcntl") is None:
        return
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            with (folder / LOCK).open("r+b") as lock:
                _lock(lock)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue


def _lock(file: IO[bytes]) -> None:
    """Raises `OSError` when somebody else holds the lock."""
    try:
        import fcntl  # noqa: PLC0415  (not on Windows)
    except ImportError:
        return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
