"""A limit on the memory of other processes that Linux enforces: a control group of our own (cgroup v1 or v2).

    with memory_group(64_000_000) as group:
        done = subprocess.run(group.command([sys.executable, "-m", "fedmef.device", ...]))
        if group.killed: ...

A group counts the pages that its processes were the first to touch: heap, stacks, arenas, private copies of
libraries' data, page tables, and the cache of files. A file that is in the system's cache already, such as a
library that another process has, is not counted again; cached pages that are counted go before anything is
killed. At the limit, with nothing to let go of, the kernel kills a process of the group. There is no swap.

It needs the right to make a group: root, or a group that was delegated. With v1 it is below the group of this
process. With v2 it may have to be next to it, as a group that has processes cannot limit groups below it.
"""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from fedmef.errors import UserError

OWN = Path("/proc/self/cgroup")
MOUNTS = Path("/proc/self/mountinfo")
# A shell that joins the group and becomes the command: what the command touches is counted from its start.
JOIN = ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"']
SECONDS_TO_END = 5.0


@dataclass(frozen=True)
class MemoryGroup:
    """Processes that share a limit.

    Attributes:
        folder: where the kernel has it.
        unified: cgroup v2.
    """

    folder: Path
    unified: bool

    def add(self, process: int) -> None:
        """Take in a running process. What it has touched before is not counted: `command` is better."""
        (self.folder / "cgroup.procs").write_text(str(process))

    def command(self, arguments: Sequence[str]) -> list[str]:
        """The same command as a member of this group from its first instruction on, under the same id."""
        return [*JOIN, str(self.folder / "cgroup.procs"), *arguments]

    @property
    def killed(self) -> int:
        """How many of its processes the kernel has killed because of the limit."""
        lines = (self.folder / ("memory.events" if self.unified else "memory.oom_control")).read_text()
        counts = (int(line.split()[1]) for line in lines.splitlines() if line.startswith("oom_kill "))
        return next(counts, 0)  # before Linux 4.13 there is no count

    @property
    def peak(self) -> int:
        """The most bytes that were counted at once, cached files included; 0 if the kernel does not say."""
        file = self.folder / ("memory.peak" if self.unified else "memory.max_usage_in_bytes")
        return int(file.read_text()) if file.exists() else 0


@contextmanager
def memory_group(limit: int) -> Iterator[MemoryGroup]:
    """A new group that may have this many bytes. When the block ends, its processes and it are gone.

    Raises `UserError` where this process cannot make one.
    """
    group = _make(limit)
    try:
        yield group
    finally:
        _remove(group)


def missing_groups() -> str:
    """Why this process cannot make a group with a limit; "" when it can."""
    try:
        with memory_group(2**30):
            return ""
    except UserError as error:
        return str(error)


def _make(limit: int) -> MemoryGroup:
    problem = "there is no memory controller that this process can see"
    for parent, unified in _parents():
        folder = parent / f"fedmef-{os.getpid()}-{uuid4().hex[:8]}"
        try:
            folder.mkdir()
        except OSError as error:
            problem = str(error)
            continue
        group = MemoryGroup(folder, unified)
        try:
            (folder / ("memory.max" if unified else "memory.limit_in_bytes")).write_text(str(limit))
            no_swap = folder / ("memory.swap.max" if unified else "memory.swappiness")
            if no_swap.exists():
                no_swap.write_text("0")
        except OSError as error:
            problem = str(error)
            _remove(group)
            continue
        return group
    raise UserError(
        f"memory limit: no control group can be made here ({problem}); it takes root, or a delegated group"
    )


def _parents() -> Iterator[tuple[Path, bool]]:
    """Where a group could be made, and whether that is v2."""
    try:
        memberships = [line.split(":", 2) for line in OWN.read_text().splitlines()]
        mounts = [line.split(" - ") for line in MOUNTS.read_text().splitlines()]
    except OSError:
        return
    for before, after in mounts:
        root, mounted = before.split()[3:5]
        kind, _, options = after.split(" ")[:3]
        for number, controllers, own in memberships:
            unified = kind == "cgroup2" and number == "0"
            if not unified and not (
                kind == "cgroup" and "memory" in controllers.split(",") and "memory" in options.split(",")
            ):
                continue
            if own != root and not own.startswith(root.rstrip("/") + "/"):
                continue  # mounted from a part of the tree that this process is not in
            group = Path(mounted, own[len(root) :].lstrip("/"))
            if not unified:
                yield group, False
                continue
            for parent in (group, group.parent) if own != root else (group,):
                if _limits_children(parent):
                    yield parent, True


def _limits_children(group: Path) -> bool:
    try:
        return "memory" in (group / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False


def _remove(group: MemoryGroup) -> None:
    """End what is left in a group, and take it away; one that does not end leaves it behind."""
    until = time.monotonic() + SECONDS_TO_END
    while group.folder.exists():
        for process in _members(group):
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            group.folder.rmdir()
        except OSError:
            if time.monotonic() > until:
                return
            time.sleep(0.01)


def _members(group: MemoryGroup) -> list[int]:
    try:
        return [int(line) for line in (group.folder / "cgroup.procs").read_text().split()]
    except OSError:
        return []
