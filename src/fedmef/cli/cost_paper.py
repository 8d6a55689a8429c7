"""`fedmef cost --paper`: the paper's costs beside our estimates, reading by reading."""

import json
from typing import Any

import typer
from rich.table import Table

from fedmef.cli.common import print_notes, wide_console
from fedmef.studies.paper.paper_costs import PaperTable, paper_tables


def print_paper(as_json: bool) -> None:
    """Table after table, each with its readings and what they come to."""
    tables = paper_tables()
    if as_json:
        typer.echo(json.dumps({"tables": [_paper_facts(table) for table in tables]}))
        return
    for table in tables:
        letters = [chr(ord("A") + place) for place in range(len(table.readings))]
        shown = Table(
            box=None,
            padding=(0, 1, 0, 0),
            pad_edge=False,
            title=f"{table.quantity} ({table.source}): the paper's, and ours by each reading; all estimated",
            title_justify="left",
            title_style="bold",
        )
        shown.add_column("", overflow="fold")
        for heading in ("paper", *letters):
            shown.add_column(heading, justify="right", no_wrap=True)
        for cell in table.cells:
            ours = [cell.printed(value) + ("=" if cell.agrees(value) else " ") for value in cell.estimated]
            shown.add_row(cell.row, cell.printed(cell.paper), *ours)
        wide_console().print(shown)
        legend = [
            f"{letter}: {reading}: {table.agreeing(place)} of {len(table.cells)} cells agree in every "
            f"digit (=); largest difference {table.largest_difference(place):.1%}"
            for place, (letter, reading) in enumerate(zip(letters, table.readings, strict=True))
        ]
        print_notes([*legend, table.finding, ""])


def _paper_facts(table: PaperTable) -> dict[str, Any]:
    return {
        "quantity": table.quantity,
        "source": table.source,
        "readings": [
            {
                "reading": reading,
                "cells_that_agree": table.agreeing(place),
                "cells": len(table.cells),
                "largest_difference": table.largest_difference(place),
            }
            for place, reading in enumerate(table.readings)
        ],
        "cells": [
            {
                "row": cell.row,
                "paper": cell.printed(cell.paper),
                "estimated": [
                    {"value": value, "printed": cell.printed(value), "agrees": cell.agrees(value)}
                    for value in cell.estimated
                ],
            }
            for cell in table.cells
        ],
        "finding": table.finding,
    }
