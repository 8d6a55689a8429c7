"""A limit on all resident memory of one worker process, enforced by a control group or by the process itself.

A group counts the pages that its process is the first to touch. In a simulation most pages of libraries were
in memory before: some 18 MB of a device's 33. So when the process has started, the limit of its group is
lowered by what is resident and was not counted.
"""

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from fedmef.costs.units import human_bytes
from fedmef.device.cgroup import MemoryGroup, memory_group
from fedmef.errors import UserError


class ProcessLimit:
    """Of one process of `fedmef.device`, from before it starts until it is gone."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._made = ExitStack()
        self.group = _make_group(limit, self._made)

    def command(self, command: list[str]) -> list[str]:
        """What starts the process within the limit."""
        if self.group is None:
            return [*command, "--memory", str(self.limit)]
        return self.group.command(command)

    def count_libraries(self, process: int) -> str:
        """Call it when the process has started: why it does not fit, or ""."""
        if self.group is None:
            return ""  # it has done so itself
        resident, of_files = _status(process, "VmRSS"), _status(process, "RssFile")
        if resident >= self.limit:
            return self.too_small(f"alone has {human_bytes(resident)}")
        uncounted = max(0, of_files - _mapped(self.group))
        file = "memory.max" if self.group.unified else "memory.limit_in_bytes"
        try:
            (self.group.folder / file).write_text(str(self.limit - uncounted))
        except OSError:
            return self.too_small("does not fit once its libraries count")
        return ""

    @property
    def exceeded(self) -> bool:
        """Whether the process was killed at the limit."""
        return self.group is not None and self.group.killed > 0

    def too_small(self, why: str) -> str:
        """For people."""
        return f"device_memory = {human_bytes(self.limit)}: a device's process {why}; give it more"

    def close(self) -> None:
        """The process is gone."""
        self._made.close()


def _make_group(limit: int, made: ExitStack) -> MemoryGroup | None:
    """None where there is no right to make one."""
    try:
        group = made.enter_context(memory_group(limit))
    except UserError:
        return None
    for folder in _abandoned(group.folder.parent):
        with suppress(OSError):
            folder.rmdir()
    return group


def _abandoned(parent: Path) -> Iterator[Path]:
    """Groups of processes that were killed and could not remove them."""
    for folder in parent.glob("fedmef-*-*"):
        if not Path("/proc", folder.name.split("-")[1]).exists():
            yield folder


def _status(process: int, name: str) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    sizes = (int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
    return next(sizes, 0)  # one that has just died has none


def _mapped(group: MemoryGroup) -> int:
    """Bytes of files that its processes have mapped and that it counts."""
    name = "file_mapped" if group.unified else "mapped_file"
    lines = (group.folder / "memory.stat").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)
