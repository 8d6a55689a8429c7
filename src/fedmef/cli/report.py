"""`fedmef report`: reads its arguments, says what is left out, prints where the report is."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedmef.cli.common import say
from fedmef.cli.plain_help import command_app
from fedmef.cli.progress import Waiting
from fedmef.errors import FedmefError
from fedmef.report.reading import FoundRuns, LeftOut, read_runs
from fedmef.report.writing import FIGURES, default_place, write_report
from fedmef.runs.directory import Run
from fedmef.studies.many import Failure


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run directories, or directories of runs.")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to write (default: report/ next to the runs).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Write a page and figures about finished runs: accuracy, measured memory, bytes, layers."""
    for given in runs:
        if not given.is_dir():
            Run.open(given)  # which says what is wrong with it
    found = read_runs(runs)
    if found.runs:
        _warn(found.left_out)
    page = _write(found, out or default_place(runs))
    if as_json:
        left_out = [{"run": str(left.path), "reason": left.reason} for left in found.left_out]
        facts = {"report": str(page), "runs": len(found.runs), "left_out": left_out}
        typer.echo(json.dumps(facts))
    else:
        say(f"report   {page}")
        say(f"figures  {page.parent / FIGURES}")
    if found.left_out:
        asked = len(found.runs) + len(found.left_out)
        raise FedmefError(f"{len(found.left_out)} of {asked} runs were left out; the report has the others")


def report_comparison(outcomes: Sequence[Run | Failure], out: Path) -> Path | None:
    """The report of a comparison, in `out/report`; None when no run was finished."""
    found = read_runs([outcome.path for outcome in outcomes if isinstance(outcome, Run)])
    if not found.runs:
        return None
    _warn(found.left_out)
    failed = [
        # A traceback from a worker says what went wrong in its last line.
        LeftOut(failure.path, failure.reason.strip().splitlines()[-1])
        for failure in outcomes
        if isinstance(failure, Failure)
    ]
    # The code that these runs name is what the user has just asked for.
    return _write(FoundRuns(found.runs, (*found.left_out, *failed)), out / "report", allow_code=True)


def _write(found: FoundRuns, out: Path, *, allow_code: bool = False) -> Path:
    waiting = Waiting(Console(stderr=True))
    try:
        return write_report(found, out, waiting.tell, allow_code=allow_code)
    finally:
        waiting.stop()


def _warn(left_out: Sequence[LeftOut]) -> None:
    for left in left_out:
        say(f"fedmef: left out: {left}", error=True)


app = command_app(report)
