"""`fedmef report`: reads its arguments, says what is left out, prints where the report is."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedmef.errors import FedmefError
from fedmef.report.reading import read_runs
from fedmef.report.writing import FIGURES, default_place, write_report


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run directories, or directories of runs.")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to write (default: report/ beside the runs).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Write a page and figures about finished runs: accuracy, measured memory, bytes, adjustments, layers."""
    found = read_runs(runs)
    for left in found.left_out:
        typer.echo(f"fedmef: left out: {left.reason}", err=True)
    page = write_report(found, out or default_place(runs))
    if as_json:
        left_out = [{"run": str(left.path), "reason": left.reason} for left in found.left_out]
        facts = {"report": str(page), "runs": len(found.runs), "left_out": left_out}
        typer.echo(json.dumps(facts))
    else:
        typer.echo(f"report   {page}\nfigures  {page.parent / FIGURES}")
    if found.left_out:
        asked = len(found.runs) + len(found.left_out)
        raise FedmefError(f"{len(found.left_out)} of {asked} runs were left out; the report has the others")
