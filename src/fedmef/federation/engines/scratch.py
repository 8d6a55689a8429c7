"""A scratch folder that goes with its process, and at the latest when the next one starts.

Its owner holds a lock on a file in it, which the system takes away from a process that is killed.
"""

import fcntl
import shutil
import tempfile
from pathlib import Path

PREFIX, LOCK = "fedmef-", "lock"


class Scratch:
    """A new folder for this process alone; those of killed processes are removed."""

    def __init__(self) -> None:
        remove_abandoned()
        unlocked = Path(tempfile.mkdtemp(prefix=f".{PREFIX}"))
        self._lock = (unlocked / LOCK).open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.folder = unlocked.rename(unlocked.with_name(unlocked.name[1:]))  # now it may be looked at

    def remove(self) -> None:
        """Remove it and all that is in it."""
        self._lock.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def remove_abandoned() -> None:
    """Remove the scratch folders whose process is gone; those of others cannot be opened and stay."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            with (folder / LOCK).open("r+b") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue
