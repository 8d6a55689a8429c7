"""`fedmef.device` in a process that looks at itself: what its peak consists of, as JSON.

Resident memory is read at points on the way: the bare interpreter, after NumPy, after the extension, after
all other imports, and after everything that a round does. The stretch between two points with the highest
peak is broken down: mapped files by `smaps`; weights, indices, arena and scratch by the backend's own count;
the arena's content by its plan, at the instruction with most bytes in use. `device_process.py` runs it.

    python benchmarks/_device_parts.py MESSAGE ANSWER --data FOLDER
"""

import sys

# Before anything else is imported: this is the interpreter.
with open("/proc/self/smaps", encoding="ascii") as _file:  # noqa: PTH123  (pathlib is an import)
    BARE = _file.read()

sys.modules.setdefault("_hashlib", None)  # type: ignore[arg-type]  # as fedmef.device does


KINDS = ("python", "numpy", "extension", "data", "anonymous")


def mapped(smaps: str) -> dict[str, int]:
    """Resident bytes by where they come from; a file's own pages and private copies of them count alike."""
    found = dict.fromkeys(KINDS, 0)
    kind = "anonymous"
    for line in smaps.splitlines():
        first, _, rest = line.partition(" ")
        if not first.endswith(":"):
            path = rest.split(None, 4)[4] if len(rest.split(None, 4)) > 4 else ""
            kind = kind_of(path)
        elif first == "Rss:":
            found[kind] += int(rest.split()[0]) * 1024
    return found


def kind_of(path: str) -> str:
    """Of a mapping, by the name of its file."""
    if not path.startswith("/"):
        return "anonymous"
    if path.endswith(".npy"):
        return "data"
    if "numpy" in path:
        return "numpy"
    if "_kernels" in path or "libstdc++" in path or "libgcc" in path:
        return "extension"
    return "python"


def read_smaps() -> dict[str, int]:
    with open("/proc/self/smaps", encoding="ascii") as file:  # noqa: PTH123
        return mapped(file.read())


AT_START = mapped(BARE)
del BARE

import numpy  # noqa: E402, F401

AFTER_NUMPY = read_smaps()

from fedmef.native import _kernels  # noqa: E402, F401

AFTER_KERNELS = read_smaps()

import json  # noqa: E402
from typing import Any  # noqa: E402

from fedmef.device import __main__ as program  # noqa: E402
from fedmef.device.native_backend import NativeBackend  # noqa: E402
from fedmef.device.resident import forget_peak, peak_resident, resident  # noqa: E402
from fedmef.native.arena import lifetimes  # noqa: E402
from fedmef.native.plan import Plan  # noqa: E402

AFTER_ALL = read_smaps()

CACHED = {"cache", "bits", "places", "statistics", "factors"}  # arguments of instructions: what is kept


class Watch:
    """Remembers the stretch of a round with the highest peak."""

    def __init__(self) -> None:
        self.peak, self.during, self.parts = 0, "", dict[str, int]()
        self.before = resident()

    def point(self, name: str, backend: Any = None) -> None:
        """The end of a stretch, and the beginning of another."""
        peak = peak_resident()
        if peak > self.peak:
            self.peak, self.during = peak, name
            self.parts = parts_of(name, peak, self.before, backend)
        self.before = resident()
        forget_peak()


def parts_of(name: str, peak: int, before: int, backend: Any) -> dict[str, int]:
    """What a peak consists of; `rest` is what is left."""
    now = read_smaps()
    parts = {
        "interpreter": now["python"] + AT_START["anonymous"],
        "numpy": now["numpy"] + AFTER_NUMPY["anonymous"] - AT_START["anonymous"],
        "extension": now["extension"] + AFTER_KERNELS["anonymous"] - AFTER_NUMPY["anonymous"],
        "other modules": AFTER_ALL["anonymous"] - AFTER_KERNELS["anonymous"],
        "data": now["data"],
    }
    memory = dict.fromkeys(("weights", "indices", "scratch", "arena"), 0)
    memory |= {} if backend is None else backend.memory()
    parts |= {kind: memory[kind] for kind in ("weights", "indices", "scratch")}
    # Between steps the arena stays as the last one left it.
    caches, dense = most_in_use(backend._last[0]) if memory["arena"] else (0, 0)
    # The arena is as large as the largest plan so far, which need not be this one's.
    unused = memory["arena"] - caches - dense
    parts |= {"caches": caches, "dense buffers": dense, "arena, not in use": unused}
    # Before the first step and after the last, what comes and goes is messages and what they are made of.
    parts["messages"] = 0 if memory["arena"] else peak - before
    parts["rest"] = peak - sum(parts.values())
    return parts


def most_in_use(plan: Plan) -> tuple[int, int]:
    """Bytes of caches and of dense buffers, when most of the arena is in use."""
    lives = lifetimes(plan.instructions, len(plan.sizes))
    kept = {
        buffer
        for instruction in plan.instructions
        for argument, buffer in instruction.buffers.items()
        if argument in CACHED
    }
    most = (0, 0)
    for moment in range(len(plan.instructions)):
        alive = [buffer for buffer, (first, last) in enumerate(lives) if first <= moment <= last]
        caches = sum(plan.sizes[buffer] for buffer in alive if buffer in kept)
        most = max(most, (caches, sum(plan.sizes[buffer] for buffer in alive) - caches), key=sum)
    return most


def watch(method: str, watcher: Watch) -> None:
    """Put a point before and after a method of the backend."""
    original = getattr(NativeBackend, method)

    def watched(self: Any, *arguments: Any) -> Any:
        watcher.point(f"before {method}", self if method != "load" else None)
        result = original(self, *arguments)
        watcher.point(method, self)
        return result

    setattr(NativeBackend, method, watched)


def main() -> int:
    watcher = Watch()
    for method in ("load", "step", "growth", "shrink"):
        watch(method, watcher)
    code = program.main(sys.argv[1:])
    watcher.point("answer")
    print(json.dumps({"peak": watcher.peak, "during": watcher.during, "parts": watcher.parts}))
    return code


if __name__ == "__main__":
    sys.exit(main())
