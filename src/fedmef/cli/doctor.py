"""`fedmef doctor`: what this installation can do here, and why not more."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedmef.cli.common import AsJson, print_facts
from fedmef.cli.plain_help import command_app
from fedmef.costs.units import human_bytes
from fedmef.device.choice import KERNELS, missing_kernels, native_threads
from fedmef.errors import UserError
from fedmef.experiment.names import load_part

PACKAGES = ("fedmef", "numpy", "torch", "flwr")
NOT_INSTALLED = "not installed"


def doctor(as_json: AsJson = False) -> None:
    """Say what this installation can do: backend, instruction set, threads, versions, memory."""
    facts = diagnosis()
    told = {name.replace("_", " "): _for_people(value) for name, value in facts.items()}
    print_facts(facts if as_json else told, as_json)


def diagnosis() -> dict[str, Any]:
    """The facts by name."""
    missing, packages = missing_kernels(), {name: _version(name) for name in PACKAGES}
    sets: list[str] = [] if missing else load_part(KERNELS, "available")()
    backend, reason = _backend(missing, packages["torch"] != NOT_INSTALLED)
    chosen = _chosen(sets) if sets else None
    if chosen is not None and chosen not in sets:
        backend, reason = None, chosen
    return {
        "backend": backend,
        "reason": reason,
        "native_kernels": missing or "built",
        "instruction_set": chosen,
        "instruction_sets": sets,
        "threads": _threads(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": _memory(),
        "python": platform.python_version(),
        **packages,
    }


def _backend(missing: str, has_torch: bool) -> tuple[str | None, str]:
    """What `auto` takes for a sparse network on a CPU, and why."""
    if not missing:
        dense = "torch for dense ones" if has_torch else "PyTorch is not installed"
        return "native", f"the native kernels are built: for sparse networks on a CPU; {dense}"
    if has_torch:
        return "torch", missing
    return None, f"PyTorch is not installed, and {missing}"


def _chosen(sets: list[str]) -> str:
    """The fastest one, unless the environment names another."""
    variable = load_part("fedmef.device.native_backend", "INSTRUCTIONS")
    asked = os.environ.get(variable)
    if not asked:
        return sets[0]
    return asked if asked in sets else f"none: {variable} = '{asked}' is not there"


def _threads() -> int | str:
    """How many a native backend has, or what is wrong with what the environment says."""
    try:
        return native_threads()
    except UserError as error:
        return f"none: {error}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return NOT_INSTALLED


def _processor() -> str:
    """Its name where Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{next(names, 'unknown')} ({platform.machine()})"


def _memory() -> int | None:
    """Bytes of the machine."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def _for_people(value: Any) -> str:
    if value is None or value == []:
        return "none"
    if isinstance(value, list):
        return ", ".join(value)
    return human_bytes(value) if isinstance(value, int) and value > 2**20 else str(value)


app = command_app(doctor)
