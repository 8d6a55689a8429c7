import os
from pathlib import Path

import numpy as np
import pytest

from fedmef.errors import UserError
from fedmef.runs.reading import read_container, read_ordinary
from fedmef.wire.container import encode


def test_only_ordinary_files_of_moderate_size_are_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert read_ordinary(file, 5) == b"12345"
    assert read_ordinary(file, 5, 2) == b"12"
    with pytest.raises(UserError, match="is larger than 4 bytes"):
        read_ordinary(file, 4)
    with pytest.raises(FileNotFoundError):
        read_ordinary(tmp_path / "nothing", 5)
    with pytest.raises(UserError, match=r"null (byte|character)"):
        read_ordinary(Path("\0"), 5)


def test_what_would_be_waited_for_or_never_ends_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("pipe", "zero", "folder", "loop"):
        with pytest.raises(UserError, match=r"no ordinary file|cannot be read"):
            read_ordinary(tmp_path / name, 100)


def test_a_container_is_as_long_as_it_says_before_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    content = encode({"a": np.arange(3)}, {"next_round": 1})
    file.write_bytes(content)
    arrays, header = read_container(file)
    assert arrays["a"].tolist() == [0, 1, 2]
    assert header == {"next_round": 1}
    with file.open("r+b") as opened:
        opened.truncate(3 * 2**30)  # it takes no room on the disk
    with pytest.raises(UserError, match="longer than it says"):
        read_container(file)
    for damage in (b"", b"\0" * 8, content[:40], b"\xff" * 8, content[:-1]):
        file.write_bytes(damage)
        with pytest.raises(UserError, match="is damaged"):
            read_container(file)
