"""`fedmef compare`: several methods, seeds and sparsities, one table, one report."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedmef.cli.common import (
    AsJson,
    FaultPlan,
    Tensorboard,
    announce,
    carry_out_shown,
    finished_before,
    items_of,
    print_failures,
    raise_failures,
    reasons,
    say,
    sparsities_of,
    with_fault_plan,
)
from fedmef.cli.options import with_experiment_options
from fedmef.cli.plain_help import command_app
from fedmef.cli.report import report_comparison
from fedmef.cli.tables import comparison_table, table_notes
from fedmef.costs.units import counted
from fedmef.errors import FedmefError, UserError
from fedmef.experiment.files import read_experiment
from fedmef.experiment.settings import make_experiment
from fedmef.runs.directory import Run
from fedmef.runs.place import check_file
from fedmef.runs.tensorboard import EventFiles, check_tensorboard
from fedmef.studies.many import DEFAULT_METHODS, Comparison, Failure, plan_runs
from fedmef.studies.rows import Row, summarize_comparison
from fedmef.wire.files import write_atomically


@dataclass(frozen=True)
class _SideOutputs:
    """What a comparison writes as well as its table."""

    out: Path
    csv_file: Path | None
    without_events: set[Path]  # runs that were finished before, whose event files are asked for
    with_report: bool

    def write(self, rows: Sequence[Row], outcomes: Sequence[Run | Failure]) -> tuple[Path | None, list[str]]:
        """The report's page, and what could not be written."""
        page, problems = None, list[str]()
        if self.csv_file is not None:
            with noting(problems, f"--csv {self.csv_file}"):
                write_atomically(self.csv_file, _csv(rows).encode())
        for finished in outcomes:
            if isinstance(finished, Run) and finished.path in self.without_events:
                with noting(problems, f"--tensorboard {finished.path}"):
                    EventFiles().write_finished(finished)
        if self.with_report:
            with noting(problems, "the report"):
                page = report_comparison(outcomes, self.out)
        return page, problems


@with_experiment_options
def compare(
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG.toml]", help="The file of what all runs share.")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(metavar="NAME,NAME", help=f"What to compare (default: {', '.join(DEFAULT_METHODS)})."),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="N|N,N", help="How many seeds, from the base seed on; or a list of them."),
    ] = None,
    sparsities: Annotated[
        str | None, typer.Option(metavar="X,X", help="Sparsities, for methods that have one.")
    ] = None,
    learning_rates: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=X,NAME=X",
            help="Learning rates of single methods (default: --learning-rate, or each method's own).",
        ),
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
        methods=default_methods if methods is None else items_of("--methods", methods),
        seeds=(base.seed,) if seeds is None else _seeds(seeds, base.seed),
        sparsities=(base.sparsity,) if sparsities is None else sparsities_of(sparsities),
        rates={} if learning_rates is None else _rates(learning_rates),
    )
    if csv_file is not None:
        check_file(csv_file, "--csv")
    out = out or Path("runs") / f"compare-{base.dataset}-{base.model}".replace(":", "-")
    plan = plan_runs(comparison.named_experiments(), out, overwrite=overwrite)
    announce("", plan, out)
    reused = finished_before(plan)
    events, unwritten = EventFiles(), {run.path for run in plan if run.finished}
    try:
        outcomes = carry_out_shown(plan, [events] if tensorboard else [])
    finally:
        events.close()
    side_outputs = _SideOutputs(out, csv_file, unwritten if tensorboard else set(), with_report)
    _print_comparison(outcomes, side_outputs, f"{counted(len(plan), 'run')} in {out}{reused}", as_json)


def _rates(text: str) -> dict[str, float]:
    """`fedmef=1,fedtiny=0.3` as a table, each rate checked as a single one is."""
    rates = {}
    for item in items_of("--learning-rates", text):
        method, equals, rate = item.rpartition("=")
        if not equals:
            raise UserError(f"--learning-rates '{item}': write a method and its rate, such as fedmef=1.0")
        checked = make_experiment({"learning_rate": rate}).learning_rate
        assert checked is not None
        rates[method] = checked
    return rates


def _seeds(text: str, first: int) -> tuple[int, ...]:
    seeds = [make_experiment({"seed": item}).seed for item in items_of("--seeds", text)]
    if "," in text:
        return tuple(seeds)
    (count,) = seeds
    if not 1 <= count <= 100:
        raise UserError(f"--seeds {text} means {text} seeds: give 1 to 100; --seed {text} is that seed alone")
    return tuple(range(first, first + count))


@contextmanager
def noting(problems: list[str], what: str) -> Iterator[None]:
    """Note what cannot be written instead of raising: a table that took hours is not lost for it."""
    try:
        yield
    except FedmefError as error:
        problems.append(str(error))
    except OSError as error:
        problems.append(f"{what}: {error.strerror or error}")


def _print_comparison(
    outcomes: Sequence[Run | Failure], side_outputs: _SideOutputs, where: str, as_json: bool
) -> None:
    rows = summarize_comparison(outcomes)
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    if not as_json:  # nothing that may go wrong from here on takes the table away
        console = Console()
        console.print(comparison_table(rows, console.width))
        for note in table_notes(rows):
            say(note)
        print_failures(failures)
        say(where)
    page, problems = side_outputs.write(rows, outcomes)
    if as_json:
        facts = {
            "runs": str(side_outputs.out),
            "report": page and str(page),
            "rows": [asdict(row) for row in rows],
            "failures": reasons(failures),
        }
        typer.echo(json.dumps(facts))
    elif page:
        say(f"report: {page}")
    for problem in problems:
        say(f"fedmef: {problem}", error=True)
    raise_failures(failures, len(outcomes))
    if problems:
        raise FedmefError("the table is complete, but not everything could be written")


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


app = command_app(compare)
