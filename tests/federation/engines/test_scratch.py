import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedmef.federation.engines.scratch import PREFIX, Scratch, remove_scratch

ABANDON = """
import os
from fedmef.federation.engines.scratch import Scratch
print(Scratch().folder, flush=True)
os._exit(1)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def abandoned(folder: Path) -> Path:
    """What a process leaves that could not tidy up."""
    environment = {**os.environ, "TMPDIR": str(folder)}
    command = [sys.executable, "-c", ABANDON]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout
    return Path(said.strip())


def test_a_scratch_folder_goes_with_its_process_and_others_stay(temporary: Path) -> None:
    left = abandoned(temporary)
    assert left.is_dir()
    one = Scratch()
    assert not left.exists()
    other = Scratch()
    assert one.folder.is_dir()  # its owner lives
    for scratch in (one, other):
        scratch.remove()
    assert list(temporary.iterdir()) == []


def test_only_what_we_made_is_removed_whatever_its_name(temporary: Path, tmp_path: Path) -> None:
    named = temporary / "fedmef-notes"  # a user's own, with a file of that name
    named.mkdir()
    (named / "lock").touch()
    likewise = temporary / f"{PREFIX}{'0' * 32}"
    likewise.mkdir()
    (likewise / "lock").write_text("1" * 32)  # another token
    linked = temporary / f"{PREFIX}{'2' * 32}"
    target = abandoned(temporary)
    (target / "lock").write_text("2" * 32)
    linked.symlink_to(target)
    Scratch().remove()
    for folder in (named, likewise, linked, target):
        remove_scratch(folder)
        assert folder.is_dir()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_what_is_somebody_elses_stays(temporary: Path) -> None:
    left = abandoned(temporary)
    os.chown(left / "lock", 12345, 12345)
    Scratch().remove()
    assert left.is_dir()
