"""A study's way from its name to its table: where its runs go, what they are, how the table looks."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table

from fedmef.errors import UserError
from fedmef.experiment import Experiment
from fedmef.progress import human_bytes
from fedmef.run_directory import CONFIG
from fedmef.studies.base import Cell, Row, Study, case_of
from fedmef.studies.scales import Scale


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


def announcement(study: Study, scale: Scale, experiments: Mapping[str, Experiment], out: Path) -> str:
    """What is about to happen, in a line."""
    rounds = sum(experiment.rounds for experiment in experiments.values())
    return f"{study.name} at {scale} scale: {len(experiments)} runs, {rounds:,} rounds in all, in {out}"


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
    comparable = (
        "This is the paper's setting."
        if scale == "paper"
        else "Not the paper's setting: compare the order of rows with the paper's, never the values."
    )
    return f"{study.title} ({study.source}), {scale} scale: {', '.join(settings)}. {comparable}"


def study_table(rows: Sequence[Row]) -> Table:
    """The rows for people; a column that is empty everywhere is left out."""
    headings = list(dict.fromkeys(heading for row in rows for heading in row))
    shown = [heading for heading in headings if any(row.get(heading) is not None for row in rows)]
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in shown:
        text = any(isinstance(row.get(heading), str) for row in rows)
        table.add_column(
            heading.replace(" (", "\n("),
            justify="left" if text else "right",
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(_shown(heading, row.get(heading)) for heading in shown))
    return table


def _shown(heading: str, cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, str):
        return cell
    if "bytes" in heading:
        return human_bytes(cell)
    if any(mark in heading for mark in ("%", "±", "fall", "drop")):
        return f"{cell:z.2f}"
    if " x " in heading:
        return f"{cell:z.3f}"
    return f"{cell:.3g}" if isinstance(cell, float) else str(cell)


def _all_values(name: str, values: Sequence[str | int]) -> str:
    return f"{name} {'/'.join(str(value) for value in dict.fromkeys(values))}"


def _network(experiment: Experiment) -> str:
    return experiment.model if experiment.width is None else f"{experiment.model} of width {experiment.width}"
