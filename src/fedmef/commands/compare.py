"""`fedmef compare`: several methods, seeds and sparsities, one table, one report."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedmef.commands.common import (
    AsJson,
    FaultPlan,
    Tensorboard,
    carry_out_shown,
    print_failures,
    raise_failures,
    reasons,
    with_fault_plan,
)
from fedmef.commands.report import report_comparison
from fedmef.comparison import DEFAULT_METHODS, Comparison, Failure, plan_runs
from fedmef.comparison_summary import Row, comparison_table, summarize_comparison
from fedmef.errors import UserError
from fedmef.event_files import EventFiles, WatchersTogether, check_tensorboard
from fedmef.experiment import make_experiment, read_experiment
from fedmef.experiment_options import with_experiment_options
from fedmef.files import write_atomically
from fedmef.run_directory import Run


@with_experiment_options
def compare(
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG.toml]", help="The file of what all runs share.")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(metavar="NAME,NAME", help=f"What to compare (default {','.join(DEFAULT_METHODS)})."),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="N|N,N", help="How many seeds, from the base seed on; or a list of them."),
    ] = None,
    sparsities: Annotated[
        str | None, typer.Option(metavar="X,X", help="Sparsities, for methods that have one.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory of the runs (default: runs/compare-DATASET-MODEL)."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Repeat every run, even a finished one.")
    ] = False,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write the table to this file too.")
    ] = None,
    with_report: Annotated[
        bool, typer.Option("--report/--no-report", help="Write a report into --out.")
    ] = True,
    fault_plan: FaultPlan = None,
    tensorboard: Tensorboard = False,
    as_json: AsJson = False,
    overrides: dict[str, Any] = {},  # noqa: B006  (filled by with_experiment_options, never changed)
) -> None:
    """Train several methods on the same data and partition; ends with one table and a report.

    Finished runs in --out are reused and interrupted ones resumed.
    """
    if tensorboard:
        check_tensorboard()
    overrides = with_fault_plan(overrides, fault_plan)
    lists = {"method": methods, "seed": seeds, "sparsity": sparsities}
    for one, many in {"method": "methods", "seed": "seeds", "sparsity": "sparsities"}.items():
        if one in overrides and lists[one] is not None:
            raise UserError(f"--{one} and --{many} say the same thing; leave one of them out")
    base = read_experiment(config, overrides) if config else make_experiment(overrides)
    default_methods = (base.method,) if "method" in overrides else DEFAULT_METHODS
    comparison = Comparison(
        base,
        methods=default_methods if methods is None else _items("--methods", methods),
        seeds=(base.seed,) if seeds is None else _seeds(seeds, base.seed),
        sparsities=(base.sparsity,) if sparsities is None else _sparsities(sparsities),
    )
    if csv_file is not None and (csv_file.is_dir() or not csv_file.parent.is_dir()):
        raise UserError(f"--csv {csv_file}: that is not a file in a folder that exists")
    out = out or Path("runs") / f"compare-{base.dataset}-{base.model}".replace(":", "-")
    plan = plan_runs(comparison.named_experiments(), out, overwrite=overwrite)
    reused = sum(run.finished for run in plan)
    events = EventFiles()
    try:
        outcomes = carry_out_shown(
            plan, lambda shown: WatchersTogether(shown, events, out) if tensorboard else shown
        )
    finally:
        events.close()
    for finished in outcomes:
        if tensorboard and isinstance(finished, Run):
            events.write_finished(finished)
    _print_comparison(outcomes, out, reused, csv_file, as_json, with_report)


def _items(option: str, text: str) -> tuple[str, ...]:
    items = tuple(item.strip() for item in text.split(","))
    if not all(items):
        raise UserError(f"{option} '{text}': an item is missing; write them with a comma between two")
    return items


def _seeds(text: str, first: int) -> tuple[int, ...]:
    seeds = [make_experiment({"seed": item}).seed for item in _items("--seeds", text)]
    if "," in text:
        return tuple(seeds)
    (count,) = seeds
    if not 1 <= count <= 100:
        raise UserError(f"--seeds {text} means {text} seeds: give 1 to 100; --seed {text} is that seed alone")
    return tuple(range(first, first + count))


def _sparsities(text: str) -> tuple[float, ...]:
    return tuple(make_experiment({"sparsity": item}).sparsity for item in _items("--sparsities", text))


def _print_comparison(
    outcomes: Sequence[Run | Failure],
    out: Path,
    reused: int,
    csv_file: Path | None,
    as_json: bool,
    with_report: bool,
) -> None:
    rows = summarize_comparison(outcomes)
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    if csv_file is not None:
        write_atomically(csv_file, _csv(rows).encode())
    if as_json:
        page = report_comparison(outcomes, out) if with_report else None
        facts = {
            "runs": str(out),
            "report": page and str(page),
            "rows": [asdict(row) for row in rows],
            "failures": reasons(failures),
        }
        typer.echo(json.dumps(facts))
    else:
        Console().print(comparison_table(rows))
        print_failures(failures)
        before = f", {reused} of them finished before" if reused else ""
        typer.echo(f"{len(outcomes)} runs in {out}{before}")
        if with_report and (page := report_comparison(outcomes, out)):
            typer.echo(f"report: {page}")
    raise_failures(failures, len(outcomes))


def _csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([field.name for field in fields(Row)])
    for row in rows:
        values = asdict(row).values()
        writer.writerow(
            [" ".join(map(str, value)) if isinstance(value, tuple) else value for value in values]
        )
    return text.getvalue()
