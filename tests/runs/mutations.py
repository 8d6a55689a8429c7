"""Run directories as a stranger, a crash or a bad disk may leave them, and what becomes of reading each.

`python -m tests.runs.mutations FOLDER FIRST COUNT [draw]` makes the mutations of these seeds in FOLDER, lets
`report`, `evaluate`, `load` and `resume` loose on each, in a process of its own with limits, and prints a
line of JSON for each outcome. A program of its own: it forks, so that what takes long to import is imported
once.
"""

import json
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

import fedmef
import fedmef.models.initial
import fedmef.nn.backend
import fedmef.nn.module
from fedmef.costs import device_process
from fedmef.costs.tensors import TensorCost
from fedmef.errors import FedmefError
from fedmef.experiment.settings import Experiment
from fedmef.federation.api import evaluate_run
from fedmef.report import figures, groups
from fedmef.report.reading import FoundRuns, read_runs
from fedmef.report.writing import write_report
from fedmef.runs.directory import Run
from tests.costs.formula import process
from tests.federation.small import TINY, interrupted_after

CPU_SECONDS, WALL_SECONDS, MEMORY = 5, 60, 2**30
TRAP = "mutation_trap"
SPRUNG = "sprung"

SHOWN = ("typed", "config", "code", "flipped", "long")  # what may show in figures, which take a second
FILES = ("config.toml", "network.json", "metrics.jsonl", "devices.jsonl", "summary.json", "model.safetensors")
CHECKPOINTS = ("checkpoint.safetensors", "checkpoint-before.safetensors")
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 10**9, 10**30, 2**63, -0.5, 1e308, "", "x", "\x1b[2J\nfake", "a" * 10**5),
    *([], {}, [None], [[[[]]]], [1] * 10**5, {"a": {"a": {}}}),
)
CONFIG_FIELDS = (
    *("rounds", "devices", "devices_per_round", "batch_size", "local_epochs", "width", "synthetic_size"),
    *(
        "synthetic_train",
        "synthetic_test",
        "sparsity",
        "method",
        "dataset",
        "model",
        "stem",
        "engine",
        "seed",
    ),
    *(
        "data_dir",
        "accelerator",
        "faults",
        "aggregation",
        "evaluate_every",
        "min_devices",
        "alpha",
        "backend",
    ),
)


def main(folder: Path, first: int, count: int, draw: bool) -> None:
    """Print an outcome a line."""
    torch.set_num_threads(1)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    (folder / f"{TRAP}.py").write_text(f"from pathlib import Path\nPath({str(folder / SPRUNG)!r}).touch()\n")
    fedmef.run(Experiment(**{**TINY, "rounds": 2}), folder / "finished")
    with suppress(KeyboardInterrupt):
        fedmef.run(Experiment(**{**TINY, "rounds": 2}), folder / "cut", callbacks=[interrupted_after(1)])
    shutil.copytree(
        folder / "cut", folder / "begun", ignore=shutil.ignore_patterns("check*", "m*", "d*", "h*")
    )
    _measure_nothing()
    if draw:
        _report(shutil.copytree(folder / "finished", folder / "mutated" / "none"))  # the first one takes long
    for seed in range(first, first + count):
        chance = random.Random(seed)
        base = chance.choice(["finished", "finished", "cut", "cut", "begun"])
        path = shutil.copytree(folder / base, folder / "mutated" / str(seed))
        what = mutate(path, chance)
        longer = partial(fedmef.resume, changes={"rounds": 3} if base == "finished" else {})
        actions: dict[str, Callable[[Path], object]] = {  # the last one alone may change anything
            "report": _report if draw and what.startswith(SHOWN) else _read,
            "evaluate": lambda path: evaluate_run(Run.open(path)),
            "load": fedmef.load,
            "resume": longer,
        }
        for name, action in actions.items():
            outcome = _contained(partial(action, path))
            said = {"seed": seed, "base": base, "what": what, "action": name, **outcome}
            print(json.dumps(said), flush=True)
        shutil.rmtree(path, ignore_errors=True)


def mutate(path: Path, chance: random.Random) -> str:
    """Change something in a run's directory, as chance has it; returns what."""
    there = [name for name in (*FILES, *CHECKPOINTS) if (path / name).is_file()]
    kind, name = chance.choice(MUTATIONS), chance.choice(there)
    return f"{kind.__name__.strip('_')} {kind(path, name, chance)}"


def _truncated(path: Path, name: str, chance: random.Random) -> str:
    file = path / name
    os.truncate(file, chance.randrange(file.stat().st_size))
    return name


def _flipped(path: Path, name: str, chance: random.Random) -> str:
    content = bytearray((path / name).read_bytes())
    for _ in range(chance.choice([1, 3, 100])):
        content[chance.randrange(len(content))] = chance.randrange(256)
    (path / name).write_bytes(content)
    return name


def _deleted(path: Path, name: str, chance: random.Random) -> str:
    (path / name).unlink()
    return name


def _nested(path: Path, name: str, chance: random.Random) -> str:
    depth = chance.choice([150, 200_000])
    contents = {
        "brackets": "[" * depth,
        "balanced": "[" * depth + "]" * depth,
        "objects": '{"a":' * depth + "1" + "}" * depth,
        "list": "rounds = " + "[" * depth + "]" * depth,
        "table": "rounds = " + "{a=" * depth + "1" + "}" * depth,
        "key": "a." * depth + "a = 1",
        "header": "[" + "a." * depth + "a]",
    }
    which = chance.choice(list(contents))
    (path / name).write_text(contents[which])
    return f"{name}: {which} {depth}"


def _huge(path: Path, name: str, chance: random.Random) -> str:
    os.truncate(path / name, chance.choice([2**21, 3 * 2**30, 2**40]))
    return name


def _long(path: Path, name: str, chance: random.Random) -> str:
    """Valid up to a point, and long."""
    content = (path.parent.parent / "finished" / "metrics.jsonl").read_bytes()
    numbers = ",".join(["257"] * 5_000_000)
    lines: dict[str, bytes] = {
        "same": content * (30_000_000 // len(content)),
        "empty": b"\n" * 30_000_000,
        "devices": content.replace(b'"devices":[', f'"devices":[{numbers},'.encode(), 1),
        "digits": b"1" * 10_000_000,
    }
    which = chance.choice(list(lines))
    (path / chance.choice(["metrics.jsonl", "devices.jsonl"])).write_bytes(lines[which])
    return which


def _in_place(path: Path, name: str, chance: random.Random) -> str:
    """Something else in place of a file, or of a folder."""
    name = chance.choice([name, name, "lock", "held", "tensorboard", "fleet"])
    file = path / name
    shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
    what = chance.choice(["pipe", "folder", "zero", "loop", "outside", "nowhere", "terminal"])
    targets = {"zero": "/dev/zero", "loop": str(file), "outside": "/etc/passwd", "nowhere": "/nowhere/at/all"}
    if what == "pipe":
        os.mkfifo(file)
    elif what == "folder":
        (file / "inside").mkdir(parents=True)
    else:
        file.symlink_to(targets.get(what, "/dev/ptmx"))
    return f"{name}: {what}"


def _config(path: Path, name: str, chance: random.Random) -> str:
    field, value = chance.choice(CONFIG_FIELDS), chance.choice(ODD_VALUES)
    lines = (path / "config.toml").read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith(f"{field} =")]
    shown = "{}" if isinstance(value, dict) else json.dumps(value)
    (path / "config.toml").write_text("".join([*kept, f"{field} = {shown}\n"]))
    return f"{field} = {shown[:40]}"


def _code(path: Path, name: str, chance: random.Random) -> str:
    field = chance.choice(["dataset", "model", "method"])
    lines = (path / "config.toml").read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith((f"{field} =", "width ="))]
    (path / "config.toml").write_text("".join([*kept, f'{field} = "{TRAP}:anything"\n']))
    return field


def _typed(path: Path, name: str, chance: random.Random) -> str:
    """Another value somewhere in a JSON file."""
    there = [name for name in FILES[1:5] if (path / name).is_file()]
    file = path / chance.choice(there)
    lines = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
    number = chance.randrange(len(lines))
    table = json.loads(lines[number])
    place, value = table, chance.choice(ODD_VALUES)
    steps = []
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = chance.choice(keys)
        steps.append(str(key))
        if isinstance(place[key], dict | list) and place[key] and chance.random() < 0.8:
            place = place[key]
        else:
            break
    place[key] = value
    lines[number] = json.dumps(table)
    file.write_text("\n".join(lines) + "\n")
    return f"{file.name}: {'.'.join(steps)} = {json.dumps(value)[:40]}"


MUTATIONS: tuple[Callable[[Path, str, random.Random], str], ...] = (
    *(_truncated, _flipped, _deleted, _nested, _nested, _huge, _long),
    *(_in_place, _in_place, _in_place, _config, _config, _config, _code, _typed, _typed, _typed, _typed),
)


def _read(path: Path) -> FoundRuns:
    """What `report` reads: the other run is there, whatever this one is."""
    other = path.parent.parent / "finished"
    found = read_runs([other, path])
    if other not in [run.path for run in found.runs]:
        raise AssertionError("the other run is gone")
    return found


def _report(path: Path) -> None:
    """Of the mutated run alone: the same experiment is not reported on twice."""
    found = _read(path)
    if len(found.runs) == 2:
        write_report(FoundRuns(found.runs[1:], found.left_out), path.parent / f"{path.name}-report")


def _measure_nothing() -> None:
    """Measurements of a report that take long; what they refuse to measure is not touched."""
    device_process._once = lambda *_: process(40e6)  # type: ignore[assignment]
    groups.measure_tensors = lambda *_: TensorCost(1, 1, 1, 1)  # type: ignore[attr-defined]
    figures._rendered = _coarsely


def _coarsely(figure: Any, form: str) -> bytes:
    if form == "png":
        figure.savefig(os.devnull, format="png", dpi=20)
    return b""


def _contained(action: Callable[[], object]) -> dict[str, Any]:
    """How an action ended in a process of its own: its error, seconds of CPU, and whether it hung."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(theirs, _outcome(action).encode(errors="replace")[:60_000])
        finally:
            os._exit(0)
    os.close(theirs)
    deadline = time.monotonic() + WALL_SECONDS
    while not (ended := os.wait4(child, os.WNOHANG))[0] and time.monotonic() < deadline:
        time.sleep(0.002)
    hung = not ended[0]
    if hung:
        os.kill(child, signal.SIGKILL)
        ended = os.wait4(child, 0)
    with os.fdopen(ours) as pipe:
        said = pipe.read()
    used = ended[2].ru_utime + ended[2].ru_stime
    return {"error": said if said else "it was killed", "seconds": round(used, 2), "hung": hung}


def _outcome(action: Callable[[], object]) -> str:
    lines = Path("/proc/self/status").read_text().splitlines()
    most = MEMORY + 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        action()
    except FedmefError as error:
        return f"typed: {error}"
    except BaseException:
        return f"untyped: {traceback.format_exc()}"
    return "works"


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] == ["draw"])
