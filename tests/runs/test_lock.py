import builtins
import errno
import fcntl
import json
import multiprocessing
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedmef.errors import FedmefError, FedmefWarning, UserError
from fedmef.runs.lock import LOCK, WriteLock, check_unlocked, locked

HOLD = """
import os, sys
from pathlib import Path
from fedmef.runs.lock import WriteLock
lock = WriteLock(Path(sys.argv[1]))
if sys.argv[2:] != ["fork"]:
    print("held", flush=True)
elif os.fork() == 0:
    print("held", flush=True)  # said by the fork: only now has it let go of the lock
    sys.stdin.read()  # it outlives the one that locked
    os._exit(0)
sys.stdin.readline()
"""


def hold(folder: Path, *how: str) -> "subprocess.Popen[str]":
    """Another process that holds the lock until it is told, or killed."""
    command = [sys.executable, "-c", HOLD, str(folder), *how]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_writer_is_told_who_the_first_is(tmp_path: Path) -> None:
    with hold(tmp_path) as first:
        who = rf"written by process {first.pid} on {re.escape(platform.node())} since \d{{4}}-\d\d-\d\d \d\d:"
        for attempt in (WriteLock, check_unlocked):
            with pytest.raises(UserError, match=who):
                attempt(tmp_path)
        first.communicate("go\n")
    check_unlocked(tmp_path)
    WriteLock(tmp_path).release()
    assert list(tmp_path.iterdir()) == []


def test_two_runs_of_one_process_exclude_each_other_too(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(UserError, match=f"process {os.getpid()} on"):
        WriteLock(tmp_path)
    with locked(tmp_path):
        pass


@pytest.mark.parametrize("how", [(), ("fork",)])
def test_a_lock_dies_with_its_process_even_if_a_fork_of_it_lives(
    tmp_path: Path, how: tuple[str, ...]
) -> None:
    with hold(tmp_path, *how) as first:
        first.kill()
        first.wait()
        assert (tmp_path / LOCK).is_file()  # it could not tidy up
        WriteLock(tmp_path).release()


def test_processes_that_are_started_do_not_hold_it(tmp_path: Path) -> None:
    lock = WriteLock(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False
    ) as started:
        spawned = multiprocessing.get_context("spawn").Process(target=input)
        spawned.start()
        lock.release()
        WriteLock(tmp_path).release()
        spawned.kill()
        spawned.join()
        started.kill()


def test_a_fork_does_not_take_the_lock_away(tmp_path: Path) -> None:
    with locked(tmp_path):
        process = os.fork()
        if process == 0:
            os._exit(0)  # its end of the lock is closed
        os.waitpid(process, 0)
        with pytest.raises(UserError, match="is being written"):
            WriteLock(tmp_path)


def test_a_directory_is_made_only_if_something_is_written(tmp_path: Path) -> None:
    new = tmp_path / "new"
    with pytest.raises(RuntimeError), locked(new, make=True):
        raise RuntimeError
    assert not new.exists()
    with locked(new, make=True):
        (new / "something").touch()
    assert [file.name for file in new.iterdir()] == ["something"]


def test_a_directory_that_is_removed_or_replaced_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with locked(folder, make=True) as lock:
        lock.check()
        (folder / LOCK).unlink()
        folder.rmdir()
        for _ in range(2):
            with pytest.raises(FedmefError, match="was removed or replaced in the middle of the run"):
                lock.check()
            folder.mkdir(exist_ok=True)
            (folder / LOCK).write_text("somebody else's")
    assert (folder / LOCK).is_file()  # not ours to remove


@pytest.mark.parametrize("said", [b"", b"{}", b"[1]", b"\xff", b"[" * 900, json.dumps({"pid": 1}).encode()])
def test_a_holder_that_does_not_say_who_it_is_holds_it_all_the_same(tmp_path: Path, said: bytes) -> None:
    with (tmp_path / LOCK).open("wb") as file:
        file.write(said)
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="is being written by another process"):
            WriteLock(tmp_path)


def test_what_is_no_file_is_no_lock(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / LOCK)
    with pytest.raises(UserError, match="is no ordinary file"):
        WriteLock(tmp_path)
    (tmp_path / LOCK).unlink()
    (tmp_path / LOCK).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="cannot write"):
        WriteLock(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_system_without_locks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.warns(FedmefWarning, match="is not locked: its file system has no locks"):
        lock = WriteLock(tmp_path)
    lock.check()
    lock.release()
    assert list(tmp_path.iterdir()) == []


def test_a_system_without_locks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "fcntl":
            raise ModuleNotFoundError(name)
        return imported(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.warns(FedmefWarning, match="is not locked: this system has no locks"):
        WriteLock(tmp_path).release()


def test_fedmef_is_imported_where_there_is_no_fcntl() -> None:
    program = "import sys; sys.modules['fcntl'] = None; import fedmef; fedmef.run; fedmef.load; fedmef.Run"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_link_named_lock_leads_no_writing_elsewhere(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "run").mkdir()
    os.link(victim, tmp_path / "run" / "lock")
    with pytest.raises(UserError, match="no ordinary file"), locked(tmp_path / "run"):
        pass
    assert victim.read_text() == "precious"
