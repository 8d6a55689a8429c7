"""Tables on a terminal: what fits its width, the least important columns going first."""

from collections.abc import Iterable, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from fedmef.costs.units import byte_unit, human_count, human_time, in_unit
from fedmef.errors import printable
from fedmef.studies.paper.base import Cell, Number
from fedmef.studies.paper.base import Row as StudyRow
from fedmef.studies.rows import Row

DISPENSABLE = ("params", "time", "best %", "traffic", "drop")
OWN_NAME = 14  # a name of ours never breaks; a longer one of the user's own may


def fitted_table(
    columns: Mapping[str, Sequence[str]],
    width: int,
    *,
    dispensable: Iterable[str],
    text: Sequence[str] = (),
    narrowest: Mapping[str, int] | None = None,
) -> Table:
    """A table of these columns. No word is broken: columns that may go are left out until it fits.

    Args:
        columns: cells by heading; a heading breaks between its words when the table is wide.
        dispensable: headings that may go, the first one first.
        text: headings of columns that are aligned to the left.
        narrowest: how narrow a column may become, where its text may be broken.
    """
    shown = dict(columns)
    titles = {heading: heading.replace(" (", "\n(") for heading in shown}
    widths = _widths(shown, {heading: title.splitlines() for heading, title in titles.items()}, narrowest)
    if _total(widths) > width:
        widths = _widths(shown, {heading: title.split() for heading, title in titles.items()}, narrowest)
    for heading in dispensable:
        if _total(widths) <= width or len(shown) == 1:
            break
        del shown[heading], widths[heading]
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, caption_justify="left")
    if left_out := len(columns) - len(shown):
        table.caption = f"columns left out: {left_out}; a wider terminal or --json shows them"
    for heading in shown:
        breaks = heading in (narrowest or {})
        table.add_column(
            titles[heading],
            justify="left" if heading in text else "right",
            overflow="fold",
            min_width=widths[heading] if breaks else None,
            width=None if breaks else widths[heading],
        )
    for cells in zip(*shown.values(), strict=True):
        table.add_row(*(Text(printable(cell).replace(" ", "\N{NO-BREAK SPACE}")) for cell in cells))
    return table


def comparison_table(rows: Sequence[Row], width: int = 80) -> Table:
    """The rows of a comparison: accuracies and drops in percent, traffic up and down per round."""
    largest = max((row.bytes_per_round or 0 for row in rows), default=0)
    size, unit = byte_unit(largest)
    cells = [_comparison_cells(row, size, unit) for row in rows]
    columns = {heading: [row[heading] for row in cells] for heading in cells[0]}
    return fitted_table(
        columns, width, dispensable=DISPENSABLE, text=("method",), narrowest={"method": OWN_NAME}
    )


def table_notes(rows: Sequence[Row]) -> list[str]:
    """What a reader of the table must know."""
    notes = [f"{row.name}: {row.warning}" for row in rows if row.warning]
    if any((row.adjustment_drop or 0) < 0 for row in rows):
        notes.append("a drop below zero is a gain")
    return notes


def study_table(rows: Sequence[StudyRow], width: int = 120) -> Table:
    """The rows of a study; a column that is empty everywhere is left out, and the last ones go first."""
    headings = dict.fromkeys(heading for row in rows for heading in row)
    columns: dict[str, list[str]] = {}
    text: list[str] = []
    for heading in headings:
        column = [row.get(heading) for row in rows]
        if any(cell is not None for cell in column):
            digits = _digits(column) if "(paper" in heading else None
            columns[heading] = [_study_cell(cell, digits) for cell in column]
        if any(isinstance(cell, str) for cell in column):
            text.append(heading)
    return fitted_table(columns, width, dispensable=list(columns)[:0:-1], text=text)


def _comparison_cells(row: Row, size: float, unit: str) -> dict[str, str]:
    spread = "" if row.accuracy_std is None else f" ± {100 * row.accuracy_std:.2f}"
    asked = len(row.seeds) + len(row.failed_seeds)
    return {
        "method": row.label,
        "sparsity": f"{row.sparsity:g}" if row.sparsity else "dense",
        "accuracy %": "failed" if row.accuracy is None else f"{100 * row.accuracy:.2f}{spread}",
        "best %": "-" if row.best_accuracy is None else f"{100 * row.best_accuracy:.2f}",
        "drop": "-" if row.adjustment_drop is None else f"{100 * row.adjustment_drop:z.2f}",
        "traffic": "-" if row.bytes_per_round is None else f"{in_unit(row.bytes_per_round, size)} {unit}",
        "time": "-" if row.seconds is None else human_time(row.seconds),
        "params": "-" if row.parameters is None else human_count(row.parameters),
        "seeds": f"{len(row.seeds)}/{asked}" if row.failed_seeds else f"{asked}",
    }


def _study_cell(cell: Cell, digits: int | None) -> str:
    """Ours as they say; the paper's with as many digits as it prints in such a column; settings as given."""
    if cell is None or isinstance(cell, str):
        return cell or "-"
    if isinstance(cell, Number | int):
        return str(cell)
    return f"{cell:g}" if digits is None else f"{cell:.{digits}f}"


def _digits(column: Sequence[Cell]) -> int:
    plain = [cell for cell in column if isinstance(cell, float) and not isinstance(cell, Number)]
    return max((len(str(cell).partition(".")[2]) for cell in plain), default=0)


def _widths(
    columns: Mapping[str, Sequence[str]],
    titles: Mapping[str, Sequence[str]],
    narrowest: Mapping[str, int] | None,
) -> dict[str, int]:
    longest = {heading: max(map(len, [*titles[heading], *cells])) for heading, cells in columns.items()}
    limits = narrowest or {}
    return {heading: min(size, limits.get(heading, size)) for heading, size in longest.items()}


def _total(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + len(widths) - 1
