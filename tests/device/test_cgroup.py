"""Groups of processes with a limit on memory. What needs the right to make one is skipped without it."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedmef.device import cgroup
from fedmef.device.cgroup import MemoryGroup, memory_group, missing_groups
from fedmef.errors import UserError

real = pytest.mark.skipif(bool(missing_groups()), reason=f"no control groups here: {missing_groups()}")
TOUCH = "import sys; held = bytearray(b'1') * int(sys.argv[1]); print('done')"


def touch(group: MemoryGroup, count: int) -> subprocess.CompletedProcess[str]:
    """A process of the group that writes to this many bytes."""
    command = group.command([sys.executable, "-c", TOUCH, str(count)])
    return subprocess.run(command, capture_output=True, text=True, check=False)


@real
def test_a_process_within_its_limit_ends_well_and_one_beyond_it_is_killed() -> None:
    with memory_group(50_000_000) as group:
        within = touch(group, 20_000_000)
        assert (within.returncode, within.stdout, group.killed) == (0, "done\n", 0)
        assert 20_000_000 < group.peak <= 50_000_000
        beyond = touch(group, 80_000_000)
        assert (beyond.returncode, beyond.stdout, group.killed) == (-9, "", 1)


@real
def test_a_process_that_runs_already_can_be_added() -> None:
    with memory_group(50_000_000) as group:
        program = "input(); held = bytearray(b'1') * 80_000_000"
        with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as late:
            group.add(late.pid)
            late.communicate(b"\n")
        assert (late.returncode, group.killed) == (-9, 1)


@real
def test_the_group_and_what_runs_in_it_are_gone_afterwards() -> None:
    with memory_group(50_000_000) as group:
        left = subprocess.Popen(group.command(["/bin/sleep", "60"]))
        while str(left.pid) not in (group.folder / "cgroup.procs").read_text().split():
            time.sleep(0.01)
    assert left.wait() == -9
    assert not group.folder.exists()


def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, mounts: str) -> None:
    """A system that has these groups."""
    (tmp_path / "own").write_text(own)
    (tmp_path / "mounts").write_text(mounts.format(tmp_path))
    monkeypatch.setattr(cgroup, "OWN", tmp_path / "own")
    monkeypatch.setattr(cgroup, "MOUNTS", tmp_path / "mounts")


V2 = "30 24 0:27 / {0}/groups rw - cgroup2 cgroup2 rw\n"


@pytest.mark.parametrize(
    ("allowing", "expected"),
    [("user/mine", "user/mine"), ("user", "user"), ("", None)],
)
def test_with_v2_the_group_is_where_groups_can_be_limited(
    allowing: str, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system(tmp_path, monkeypatch, "0::/user/mine\n", V2)
    for folder in ("user", "user/mine"):
        (tmp_path / "groups" / folder).mkdir(parents=True)
        control = "cpu memory\n" if folder == allowing else "cpu\n"
        (tmp_path / "groups" / folder / "cgroup.subtree_control").write_text(control)
    if expected is None:
        assert "no control group can be made here" in missing_groups()
        return
    group = cgroup._make(12345)
    assert (group.folder.parent, group.unified) == (tmp_path / "groups" / expected, True)
    assert (group.folder / "memory.max").read_text() == "12345"


def test_with_v1_the_group_is_below_that_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container the mount shows a part of the tree."""
    mounts = (
        "30 24 0:27 /box {0}/cpu rw - cgroup cgroup rw,cpu\n"
        "31 24 0:28 /elsewhere {0}/other rw - cgroup cgroup rw,memory\n"
        "32 24 0:28 /box {0}/memory rw - cgroup cgroup rw,memory\n"
    )
    system(tmp_path, monkeypatch, "3:cpu:/box/one\n4:memory:/box/one\n0::/\n", mounts)
    (tmp_path / "memory" / "one").mkdir(parents=True)
    group = cgroup._make(12345)
    assert (group.folder.parent, group.unified) == (tmp_path / "memory" / "one", False)
    assert (group.folder / "memory.limit_in_bytes").read_text() == "12345"


def test_where_there_are_no_groups_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "OWN", tmp_path / "none")
    with pytest.raises(UserError, match="memory limit: no control group"), memory_group(10**9):
        pytest.fail("there is none")
