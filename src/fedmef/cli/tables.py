"""The table of a comparison on a terminal: what fits its width, the least important columns going first."""

from collections.abc import Sequence

from rich.table import Table

from fedmef.cli.progress import byte_unit, in_unit
from fedmef.studies.rows import Row

HEADINGS = ("method", "sparsity", "accuracy %", "best %", "drop", "traffic", "time", "params", "seeds")
DISPENSABLE = ("params", "time", "best %", "traffic", "drop")
OWN_NAME = 14  # a name of ours never breaks; a longer one of the user's own may


def comparison_table(rows: Sequence[Row], width: int = 80) -> Table:
    """The rows for people: accuracies and drops in percent, traffic up and down per round."""
    largest = max((row.bytes_per_round or 0 for row in rows), default=0)
    cells = [_cells(row, *byte_unit(largest)) for row in rows]
    shown = list(HEADINGS)
    for heading in DISPENSABLE:
        if _width(shown, cells) > width:
            shown.remove(heading)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("method", overflow="fold", min_width=_column("method", cells, OWN_NAME))
    for heading in shown[1:]:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in cells:
        table.add_row(*(row[heading] for heading in shown))
    return table


def table_notes(rows: Sequence[Row]) -> list[str]:
    """What a reader of the table must know."""
    notes = [f"{row.name}: {row.warning}" for row in rows if row.warning]
    if any((row.adjustment_drop or 0) < 0 for row in rows):
        notes.append("a drop below zero is a gain")
    return notes


def _width(headings: Sequence[str], cells: Sequence[dict[str, str]]) -> int:
    limits = {"method": OWN_NAME}
    return sum(_column(heading, cells, limits.get(heading)) + 1 for heading in headings) - 1


def _column(heading: str, cells: Sequence[dict[str, str]], limit: int | None = None) -> int:
    longest = max(len(text) for text in (heading, *(row[heading] for row in cells)))
    return longest if limit is None else min(longest, limit)


def _cells(row: Row, size: float, unit: str) -> dict[str, str]:
    spread = "" if row.accuracy_std is None else f" ± {100 * row.accuracy_std:.2f}"
    asked = len(row.seeds) + len(row.failed_seeds)
    values = (
        row.label,
        f"{row.sparsity:g}" if row.sparsity else "dense",
        "failed" if row.accuracy is None else f"{100 * row.accuracy:.2f}{spread}",
        "-" if row.best_accuracy is None else f"{100 * row.best_accuracy:.2f}",
        "-" if row.adjustment_drop is None else f"{100 * row.adjustment_drop:z.2f}",
        "-" if row.bytes_per_round is None else f"{in_unit(row.bytes_per_round, size)} {unit}",
        "-" if row.seconds is None else human_time(row.seconds),
        "-" if row.parameters is None else _human_count(row.parameters),
        f"{len(row.seeds)}/{asked}" if row.failed_seeds else f"{asked}",
    )
    return dict(zip(HEADINGS, values, strict=True))


def _human_count(count: int) -> str:
    return (
        f"{count:,}" if count < 10_000 else f"{count / 1e3:.1f} k" if count < 1e6 else f"{count / 1e6:.2f} M"
    )


def human_time(seconds: float) -> str:
    """`12.3 s`, `4.5 m` or `2.1 h`."""
    for unit, length in (("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"
