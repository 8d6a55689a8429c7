"""Whatever a user gets wrong: one line that names it and the remedy, exit code 2, and nothing is written.

The list is wrong_inputs.txt, and what it names is made by wrong_place.py.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmef.device.choice import missing_kernels
from tests.cli.invoking import Ended, Invoke
from tests.cli.wrong_place import make_place

LIST = Path(__file__).with_name("wrong_inputs.txt")
DEVICE = "python -m fedmef.device"  # the heading of the device's own command lines


def listed(device: bool) -> Iterator[tuple[str, str]]:
    """Command lines, and what they are told."""
    heading = ""
    for line in LIST.read_text(encoding="utf-8").splitlines()[2:]:
        if line.startswith("#"):
            heading = line.removeprefix("# ")
        elif line and (heading == DEVICE) == device:
            command, _, message = line.partition(" => ")
            yield command.strip(), message


COMMANDS, OF_DEVICES = list(listed(False)), list(listed(True))
SAMPLE = [
    "rnu",
    "run --lr 0.1",
    "run --sparsity 90%",
    "run --out full",
    "predict runs/done nowhere.png",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder in which all of it happens."""
    folder = tmp_path_factory.mktemp("place")
    path, modules = list(sys.path), set(sys.modules)
    make_place(folder)
    yield folder
    sys.path[:] = path
    for name in ("own", "syntax", "raises", "lacks"):
        if name not in modules:
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def before(place: Path) -> dict[str, tuple[int, int]]:
    return content(place)


@pytest.fixture
def inside(
    place: Path, before: dict[str, tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Be there, and leave it as it was."""
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    yield
    assert content(place) == before


def content(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file, and the names of all folders."""
    found = {}
    for where, folders, files in os.walk(folder):
        found.update({os.path.join(where, name): (0, 0) for name in folders})  # noqa: PTH118  (it is fast)
        for name in files:
            facts = os.stat(path := os.path.join(where, name))  # noqa: PTH116, PTH118
            found[path] = facts.st_size, facts.st_mtime_ns
    return found


def check(ended: Ended, program: str, message: str) -> None:
    pattern = f"{program}: {'.*'.join(map(re.escape, message.split('…')))}\n"
    assert (ended.code, ended.printed) == (2, "")
    assert re.fullmatch(pattern, ended.errors), f"{ended.errors}\nis not\n{pattern}"


def test_the_list_has_several_hundred_different_ones() -> None:
    every = COMMANDS + OF_DEVICES
    assert len(set(every)) == len(every) >= 500


@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize(("command", "message"), COMMANDS, ids=[command for command, _ in COMMANDS])
def test_what_is_wrong_is_one_line_and_nothing_is_written(command: str, message: str, invoke: Invoke) -> None:
    if "flower gate --host" in command:
        pytest.importorskip("starlette")
    if "--device-memory 1" in command and missing_kernels():
        pytest.skip("another remedy")
    check(invoke(*shlex.split(command)), "fedmef", message)


@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize(
    ("command", "message"), OF_DEVICES, ids=[command or "nothing" for command, _ in OF_DEVICES]
)
def test_the_same_of_a_device(
    command: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("fedmef.native._kernels")
    from fedmef.device import __main__ as program

    monkeypatch.setattr(program, "give_back_freed_memory", lambda: None)  # not of the tests' process
    code = program.main(shlex.split(command))
    check(Ended(code, *capsys.readouterr()), "fedmef.device", message)


@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize("command", SAMPLE)
def test_so_it_is_in_a_process_of_its_own(command: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-B", "-m", "fedmef", *shlex.split(command)],
        capture_output=True,
        text=True,
        check=False,
    )
    check(Ended(ended.returncode, ended.stdout, ended.stderr), "fedmef", dict(COMMANDS)[command])
