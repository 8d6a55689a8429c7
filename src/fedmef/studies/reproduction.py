"""A study's way from its name to its table: where its runs go, what they are, how the table looks."""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path

import torch
from rich.table import Table

from fedmef.cli.progress import human_bytes
from fedmef.errors import UserError
from fedmef.experiment.resuming import changed_fields
from fedmef.experiment.settings import MACHINE_FIELDS, Experiment
from fedmef.runs.directory import CONFIG, METRICS, MODEL, SUMMARY, Run
from fedmef.runs.finished import read_finished
from fedmef.studies.paper.base import Cell, Row, Study, case_of
from fedmef.studies.paper.scales import SEEDS, Scale

ADOPTED_FILES = (CONFIG, METRICS, MODEL, SUMMARY)


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
    """Copy what another study beside `out` has finished already; returns how many runs that were.

    Studies overlap: FedMef at 90 % stands in most of them. Only runs of these versions of fedmef and PyTorch
    count, whole ones with their model; others are left to be run.
    """
    missing = {name: experiment for name, experiment in experiments.items() if not (out / name).exists()}
    adopted = 0
    for directory in _finished_beside(out, scale) if missing else ():
        try:
            there = read_finished(directory)
        except UserError:
            continue  # it is another study's, and not needed
        if (there.summary.fedmef, there.summary.torch) != (version("fedmef"), torch.__version__):
            continue
        for name, experiment in missing.items():
            if not (out / name).exists() and not changed_fields(there.experiment, experiment, MACHINE_FIELDS):
                _copy_run(directory, out / name)
                adopted += 1
    return adopted


def find_finished(experiments: Mapping[str, Experiment], out: Path) -> dict[str, Run | None]:
    """The finished run of each experiment, wherever it lies in `out` or in a directory beside it.

    Nothing is copied or trained, models are not needed, and any version counts: this is for runs that were
    published, as in results/.
    """
    found: dict[str, Run | None] = dict.fromkeys(experiments)
    out = out.resolve()
    files = out.parent.glob(f"[!.]*/*/{SUMMARY}")  # a hidden one may be a copy that is being made
    for file in sorted(files, key=lambda file: (file.parent.parent != out, file)):
        try:
            there = read_finished(file.parent)
        except UserError:
            continue
        for name, experiment in experiments.items():
            if found[name] is None and not changed_fields(there.experiment, experiment, MACHINE_FIELDS):
                found[name] = there.directory
    return found


def _finished_beside(out: Path, scale: Scale) -> list[Path]:
    runs = (file.parent for file in sorted(out.parent.glob(f"reproduce-*-{scale}/*/{MODEL}")))
    files = [(run, [run / name for name in ADOPTED_FILES]) for run in runs if run.parent != out]
    return [run for run, own in files if all(file.is_file() and not file.is_symlink() for file in own)]


def _copy_run(directory: Path, to: Path) -> None:
    """Whole or not at all: a copy that is cut short lies where nothing looks."""
    to.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=to.parent.parent, prefix=".adopting-") as folder:
        copy = Path(folder) / to.name
        copy.mkdir()
        for name in ADOPTED_FILES:
            shutil.copyfile(directory / name, copy / name)
        copy.rename(to)


def caption(study: Study, scale: Scale, experiments: Mapping[str, Experiment]) -> str:
    """What the table is, and what its numbers can be compared with."""
    all_of_them = list(experiments.values())
    settings = [
        _all_values("data", [experiment.dataset for experiment in all_of_them]),
        _all_values("network", [_network(experiment) for experiment in all_of_them]),
        _all_values("rounds", [experiment.rounds for experiment in all_of_them]),
        _all_values("devices", [experiment.devices for experiment in all_of_them]),
        f"seeds {len({experiment.seed for experiment in all_of_them})}",
    ]
    seeds = len({experiment.seed for experiment in all_of_them})
    about = f"{study.title} ({study.source}), {scale} scale: {', '.join(settings)}."
    return " ".join(filter(None, [about, _comparable(study, scale, seeds), study.remark]))


def _comparable(study: Study, scale: Scale, seeds: int) -> str:
    if scale == "smoke":
        return "It only shows that the path works: accuracies and their order mean nothing."
    if study.source == "ours":
        return "The paper has no such table."
    if scale == "desk":
        return "Not the paper's setting: compare the order of rows with the paper's, never the values."
    few = f" with {seeds} of its {SEEDS['paper']} seeds" if seeds < SEEDS["paper"] else ""
    silent = "λ, the devices of a round, and how often the learning rate decays"
    return f"The paper's setting{few}; where it is silent, ours: {silent}."


def study_table(rows: Sequence[Row], width: int = 120) -> Table:
    """The rows for people; a column that is empty everywhere is left out.

    No word is broken: the last columns are left out too when they do not fit, and the caption says so.
    """
    headings = list(dict.fromkeys(heading for row in rows for heading in row))
    shown = {}
    for heading in headings:
        column = [row.get(heading) for row in rows]
        if any(cell is not None for cell in column):
            digits = _digits(column)
            shown[heading] = [_shown(heading, cell, digits) for cell in column]
    # Rich would narrow the widest columns first, and then cut: the widths are ours.
    titles = {heading: heading.replace(" (", "\n(") for heading in shown}
    widths = {name: _width([*titles[name].splitlines(), *cells]) for name, cells in shown.items()}
    if sum(widths.values()) > width:
        widths = {name: _width([*titles[name].split(), *cells]) for name, cells in shown.items()}
    ends = zip(widths, accumulate(widths.values()), strict=True)
    fitting = [heading for heading, end in ends if end <= width] or list(shown)[:1]
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, caption_justify="left")
    if left_out := len(shown) - len(fitting):
        table.caption = f"columns left out: {left_out}; a wider terminal or --json shows them"
    for heading in fitting:
        text = any(isinstance(row.get(heading), str) for row in rows)
        table.add_column(titles[heading], justify="left" if text else "right", width=widths[heading] - 1)
    for cells in zip(*(shown[heading] for heading in fitting), strict=True):
        table.add_row(*cells)
    return table


def _width(lines: Sequence[str]) -> int:
    """Of a column of such lines, with the space after it."""
    return max(map(len, lines)) + 1


def _digits(column: Sequence[Cell]) -> int:
    """Digits after the point that the paper prints in such a column."""
    return max(len(str(cell).partition(".")[2]) for cell in column)


def _shown(heading: str, cell: Cell, digits: int) -> str:
    if cell is None or isinstance(cell, str):
        return cell or "-"
    if "(paper" in heading:
        return f"{cell:.{digits}f}"
    if "bytes" in heading:
        return human_bytes(cell).replace(" ", "\N{NO-BREAK SPACE}")
    if any(mark in heading for mark in ("%", "±", "fall", "drop", "MB")):
        return f"{cell:z.2f}"
    if " x " in heading:
        return f"{cell:z.3f}"
    return f"{cell:.3g}" if isinstance(cell, float) else str(cell)


def _all_values(name: str, values: Sequence[str | int]) -> str:
    return f"{name} {'/'.join(str(value) for value in dict.fromkeys(values))}"


def _network(experiment: Experiment) -> str:
    return experiment.model if experiment.width is None else f"{experiment.model} of width {experiment.width}"
