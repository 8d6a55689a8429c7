"""Files that are either whole or not there."""

import os
import random
import threading
from pathlib import Path

import pytest

from fedmef.errors import UserError
from fedmef.wire.files import PIECE_BYTES, left_behind, read_bounded, write_atomically


def test_what_is_written_is_there_and_nothing_else(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", b"one")
    write_atomically(tmp_path / "file", b"two")
    assert (tmp_path / "file").read_bytes() == b"two"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_what_was_there_before_is_kept_if_asked_for(tmp_path: Path) -> None:
    for content in (b"one", b"two", b"three"):
        write_atomically(tmp_path / "file", content, keep=tmp_path / "before")
    assert (tmp_path / "file").read_bytes() == b"three"
    assert (tmp_path / "before").read_bytes() == b"two"


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    write_atomically(tmp_path / "file", b"one")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "file", b"two")
    assert (tmp_path / "file").read_bytes() == b"one"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_link_that_somebody_left_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    (tmp_path / f".file.{os.getpid()}").symlink_to(tmp_path / "precious")
    write_atomically(tmp_path / "file", b"one")
    assert (tmp_path / "precious").read_bytes() == b"precious"
    assert (tmp_path / "file").read_bytes() == b"one"


def test_temporary_files_of_killed_processes_are_found(tmp_path: Path) -> None:
    for name in (".file.123", ".other.123", ".file.txt", "file", "file.123"):
        (tmp_path / name).touch()
    assert [file.name for file in left_behind(tmp_path, ("file",))] == [".file.123"]


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_bounded(tmp_path / "file", 5) == b"12345"
    with pytest.raises(UserError, match=r"file is larger than 4 bytes"):
        read_bounded(tmp_path / "file", 4)


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, 2 * PIECE_BYTES + 7])
def test_files_of_every_size_are_read_whole(tmp_path: Path, size: int) -> None:
    content = random.Random(size).randbytes(size)
    (tmp_path / "file").write_bytes(content)
    assert read_bounded(tmp_path / "file", size) == content
    assert read_bounded(tmp_path / "file", 2**40) == content  # no room is made for so much
    if size:
        with pytest.raises(UserError):
            read_bounded(tmp_path / "file", size - 1)


def test_a_pipe_can_be_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(b"12345",))
    writer.start()
    assert read_bounded(tmp_path / "pipe", 100) == b"12345"
    writer.join()
