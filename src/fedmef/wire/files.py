"""Files that are either complete or absent, and files that are not larger than they should be."""

import os
from collections.abc import Iterator
from pathlib import Path

from fedmef.errors import UserError

PIECE_BYTES = 2**20


def write_atomically(path: Path, content: bytes, *, keep: Path | None = None) -> None:
    """Write under a temporary name, flush to the disk, rename: a reader never sees a part.

    With `keep`, what `path` was before is there afterwards; at every moment one of the two is complete.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)
        with temporary.open("xb") as file:  # never through a link that somebody left there
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if keep is not None and path.exists():
            path.replace(keep)
        temporary.replace(path)
        _flush_names(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def exists(path: Path) -> bool:
    """Whether something is there, whatever the path may be."""
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that is too long, or that no file can have
        return False


def left_behind(folder: Path, names: tuple[str, ...]) -> Iterator[Path]:
    """Temporary files of these names that a killed process could not remove."""
    for name in names:
        for file in folder.glob(f".{name}.*"):
            if file.suffix[1:].isdecimal():
                yield file


def read_bounded(path: Path, limit: int) -> bytes:
    """A file's content; a `UserError` for one that is larger than it can honestly be."""
    pieces: list[bytes] = []
    size = 0
    with path.open("rb") as file:
        # Not all at once: room would be made for as much as may come, and not for what there is.
        while size <= limit and (piece := file.read(PIECE_BYTES)):
            pieces.append(piece)
            size += len(piece)
    if size > limit:
        raise UserError(f"{path} is larger than {limit:,} bytes: it is damaged, or not what it says")
    return b"".join(pieces)


def _flush_names(folder: Path) -> None:
    """Without this, a power cut may undo a rename that was done."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
