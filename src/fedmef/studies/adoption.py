"""Where the runs of a study are: its own directory, and what other studies have finished already."""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmef.errors import UserError
from fedmef.experiment.files import changed_fields
from fedmef.experiment.settings import MACHINE_FIELDS, Experiment
from fedmef.federation.loop import versions
from fedmef.runs.directory import BEST, CLASSES, CONFIG, MODEL, NETWORK, SERVER, SUMMARY, Run, read_finished
from fedmef.runs.metrics import DEVICES, METRICS
from fedmef.studies.paper.base import Study, case_of
from fedmef.studies.paper.scales import Scale

ADOPTED_FILES = (CONFIG, NETWORK, METRICS, MODEL, SUMMARY)
OPTIONAL_FILES = (DEVICES, CLASSES, SERVER, BEST)


def default_directory(study: Study, scale: Scale) -> Path:
    """Every scale has a place of its own."""
    return Path("runs") / f"reproduce-{study.name}-{scale}"


def check_directory(study: Study, scale: Scale, out: Path) -> None:
    """Raise `UserError` when `out` holds runs of something else: scales and studies never mix."""
    own = {case.name for case in study.cases(scale)}
    for config in sorted(out.glob(f"*/{CONFIG}")):
        if case_of(config.parent.name) not in own:
            raise UserError(
                f"{config.parent} is no part of {study.name} at {scale} scale; choose another --out"
            )


def chosen_cases(experiments: Mapping[str, Experiment], only: Sequence[str]) -> dict[str, Experiment]:
    """The experiments whose names have one of these parts, all of them when none is given.

    A part lies between hyphens: `sparsity0.9` is none of `fedmef-sparsity0.95-seed0`.
    """
    found = {part: {name for name in experiments if f"-{part}-" in f"-{name}-"} for part in only}
    for part, names in found.items():
        if not names:
            cases = ", ".join(dict.fromkeys(case_of(name) for name in experiments))
            raise UserError(f"--only {part}: no run has this in its name; the study has {cases}")
    asked = set().union(*found.values()) if only else set(experiments)
    return {name: experiment for name, experiment in experiments.items() if name in asked}


def adopt_finished(experiments: Mapping[str, Experiment], out: Path, scale: Scale) -> int:
    """Copy what another study next to `out` has finished already; returns how many runs that were.

    Studies overlap: FedMef at 90 % stands in most of them. Only runs of these versions of fedmef and PyTorch
    count, complete ones with their model; others are left to be run.
    """
    missing = {name: experiment for name, experiment in experiments.items() if not (out / name).exists()}
    adopted = 0
    for directory in _finished_beside(out, scale) if missing else ():
        try:
            there = read_finished(directory)
        except UserError:
            continue  # it is another study's, and not needed
        if there.summary.model_dump(include=set(versions())) != versions():
            continue
        for name, experiment in missing.items():
            if not (out / name).exists() and not changed_fields(there.experiment, experiment, MACHINE_FIELDS):
                _copy_run(directory, out / name)
                adopted += 1
    return adopted


def published_directory(study: Study, scale: Scale) -> Path:
    """Where a checkout has the runs that its pages report."""
    return Path("results") / scale / study.name


def find_finished(experiments: Mapping[str, Experiment], places: Sequence[Path]) -> dict[str, Run | None]:
    """The finished run of each experiment, in one of the places or in a directory next to it.

    Nothing is copied or trained, models are not needed, and any version and backend counts: this is for runs
    that were published, as in results/.
    """
    asked = {name: _settings(experiment) for name, experiment in experiments.items()}
    found: dict[str, Run | None] = dict.fromkeys(experiments)
    for file in _summaries(places):
        try:
            there = read_finished(file.parent)
        except UserError:
            continue
        own = _settings(there.experiment)
        for name in (name for name, settings in asked.items() if settings == own):
            found[name] = found[name] or there
    return found


def _settings(experiment: Experiment) -> dict[str, Any]:
    """All that a result depends on, but for rounding."""
    return experiment.model_dump(exclude={*MACHINE_FIELDS, "backend"})


def _summaries(places: Sequence[Path]) -> list[Path]:
    """A place's own first, then those next to it; what is hidden may be a copy that is being made."""
    return [
        file
        for place in map(Path.resolve, places)
        for file in sorted(
            place.parent.glob(f"[!.]*/*/{SUMMARY}"), key=lambda file: (file.parent.parent != place, file)
        )
    ]


def _finished_beside(out: Path, scale: Scale) -> list[Path]:
    runs = (file.parent for file in sorted(out.parent.glob(f"reproduce-*-{scale}/*/{MODEL}")))
    files = [(run, [run / name for name in ADOPTED_FILES]) for run in runs if run.parent != out]
    return [run for run, own in files if all(file.is_file() and not file.is_symlink() for file in own)]


def _copy_run(directory: Path, to: Path) -> None:
    """Completely or not at all: a copy that is cut short lies where nothing looks."""
    to.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=to.parent.parent, prefix=".adopting-") as folder:
        copy = Path(folder) / to.name
        copy.mkdir()
        for name in (*ADOPTED_FILES, *OPTIONAL_FILES):
            if name in ADOPTED_FILES or (directory / name).is_file():
                shutil.copyfile(directory / name, copy / name)
        copy.rename(to)
