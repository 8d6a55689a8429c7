"""Which run directories can be reported on, and why the others cannot."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedmef.errors import UserError
from fedmef.experiment.settings import MACHINE_FIELDS
from fedmef.methods import METHODS
from fedmef.runs.directory import FILES, Run, read_finished


@dataclass(frozen=True)
class LeftOut:
    """A directory that is not reported on, and why."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return self.reason if str(self.path) in self.reason else f"{self.path}: {self.reason}"


@dataclass(frozen=True)
class FoundRuns:
    """What the directories gave."""

    runs: tuple[Run, ...]
    left_out: tuple[LeftOut, ...]


def read_runs(paths: Sequence[Path]) -> FoundRuns:
    """The finished runs in these directories. A directory of runs is sorted as the table of `compare` is."""
    runs: list[Run] = []
    left_out: list[LeftOut] = []
    seen: set[Path] = set()
    for given in paths:
        found = []
        for path in _run_directories(given):
            if path in seen:
                continue
            seen.add(path)
            try:
                found.append(_read(path))
            except UserError as error:
                left_out.append(LeftOut(path, str(error)))
            except OSError as error:
                left_out.append(LeftOut(path, f"it cannot be read: {error.strerror}"))
        runs += sorted(found, key=_place_in_table)
    return FoundRuns(tuple(runs), tuple(left_out))


def holds_runs(path: Path) -> bool:
    """Whether this is a directory of runs, and not a run itself."""
    return path.is_dir() and not _looks_like_run(path)


def _run_directories(path: Path) -> Iterable[Path]:
    return _runs_inside(path) or [path] if holds_runs(path) else [path]


def _runs_inside(path: Path) -> list[Path]:
    try:
        return sorted(folder for folder in path.iterdir() if folder.is_dir() and _looks_like_run(folder))
    except OSError:
        return []  # why shows when it is read as a run


def _read(path: Path) -> Run:
    if holds_runs(path):
        for folder in sorted(path.iterdir()):
            if folder.is_dir() and _runs_inside(folder):
                raise UserError(f"{path} holds no run; {folder} is a directory of runs: name it")
    return read_finished(path)


def _looks_like_run(path: Path) -> bool:
    try:
        return any((path / name).is_file() for name in FILES)
    except OSError:
        return True  # likewise


def _place_in_table(run: Run) -> tuple[object, ...]:
    names = list(METHODS)
    method = run.experiment.method
    place = names.index(method) if method in names else len(names)
    settings = run.experiment.model_dump(exclude={"seed", *MACHINE_FIELDS}).values()
    comparable = tuple((value is not None, value) for value in settings)
    return place, method, run.sparsity, comparable, run.experiment.seed
