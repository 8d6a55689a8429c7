"""One writer per run: a lock on its directory, which the system takes back from a process that is gone.

The lock is on a file in the directory, which says who holds it. A file that a killed process left there holds
nobody up. Windows has no such locks, nor have some network file systems: there a warning says so.
"""

import errno
import json
import os
import platform
import stat
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from fedmef.errors import FedmefError, FedmefWarning, UserError

LOCK = "lock"
NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
LONGEST_HOLDER = 1000
# Not through a link; a pipe in its place must not stop us; not for the programs that we start.
FLAGS = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)

_held: "weakref.WeakSet[WriteLock]" = weakref.WeakSet()


class WriteLock:
    """Held by this process until it is released, or the process ends in whatever way."""

    def __init__(self, folder: Path) -> None:
        """Raises `UserError` that names the holder when somebody writes into the folder already."""
        self._folder = folder
        self._descriptor = _acquire(folder / LOCK)
        _held.add(self)

    def check(self) -> None:
        """Raise `FedmefError` when the folder that was locked is no longer where it was."""
        there = self._folder.is_dir() if self._descriptor is None else self._is_there(self._descriptor)
        if not there:
            raise FedmefError(
                f"{self._folder} was removed or replaced in the middle of the run: the run stops here, and "
                "writes nothing more"
            )

    def release(self) -> None:
        """Let others write."""
        if self._descriptor is not None:
            if self._is_there(self._descriptor):
                with suppress(OSError):
                    (self._folder / LOCK).unlink()  # whoever opened it meanwhile sees that it is gone
            self.forget()

    def forget(self) -> None:
        """Close our end of it: in a forked process, the lock stays with the parent, and dies with it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _is_there(self, descriptor: int) -> bool:
        return _is_same(descriptor, self._folder / LOCK)


@contextmanager
def locked(folder: Path, *, make: bool = False) -> Iterator[WriteLock]:
    """Within the block nobody else writes into the folder; `make` it, and remove it if it stays empty."""
    made = make and not folder.exists()
    try:
        if make:
            _make(folder)
        lock = WriteLock(folder)
        try:
            yield lock
        finally:
            lock.release()
    finally:
        if made:
            with suppress(OSError):  # there is something in it, as there should be
                folder.rmdir()


def check_unlocked(folder: Path) -> None:
    """Raise `UserError` when somebody writes there now: better known before the data are opened."""
    try:
        descriptor = os.open(folder / LOCK, FLAGS)
    except OSError:
        return  # nobody does, or it will show when the lock is taken
    try:
        _lock(descriptor, folder / LOCK)
    finally:
        os.close(descriptor)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the directory {folder}: {error.strerror}") from None


def _acquire(file: Path) -> int | None:
    """The locked file, open; None where there are no locks."""
    while True:
        try:
            descriptor = os.open(file, FLAGS | os.O_CREAT, 0o644)
        except OSError as error:
            raise UserError(f"cannot write {file}: {error.strerror}") from None
        try:
            if not _lock(descriptor, file):
                file.unlink(missing_ok=True)
            elif _is_same(descriptor, file):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, json.dumps(_this_process()).encode())
                return descriptor
            else:  # its holder has just removed it
                os.close(descriptor)
                continue
        except OSError as error:
            os.close(descriptor)
            raise UserError(f"cannot write {file}: {error.strerror}") from None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None


def _lock(descriptor: int, file: Path) -> bool:
    """False where there are no locks; raises `UserError` that names the holder when it is held."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:  # a link would lead our writing elsewhere
        raise UserError(f"{file} is no ordinary file: remove it")
    try:
        import fcntl  # noqa: PLC0415  (Windows has none)
    except ImportError:
        _warn(file, "this system has no locks of this kind")
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(
            f"{file.parent} is being written by {_holder(descriptor)}; wait until that ends, or stop it first"
        ) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        _warn(file, f"its file system has no locks ({error.strerror})")
        return False
    return True


def _warn(file: Path, reason: str) -> None:
    message = f"{file.parent} is not locked: {reason}; see to it that no other process writes there"
    warnings.warn(message, FedmefWarning, stacklevel=2)


def _this_process() -> dict[str, Any]:
    since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    return {"pid": os.getpid(), "host": platform.node(), "since": since}


def _holder(descriptor: int) -> str:
    try:
        said = json.loads(os.pread(descriptor, LONGEST_HOLDER, 0))
        return f"process {said['pid']} on {said['host']} since {said['since']}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "another process"


def _is_same(descriptor: int, file: Path) -> bool:
    try:
        there = file.stat(follow_symlinks=False)
    except OSError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)


def _forget_all() -> None:
    for lock in list(_held):
        lock.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
