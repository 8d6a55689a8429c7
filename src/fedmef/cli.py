"""The commands, thin: each reads its arguments, calls the library and prints."""

import csv
import io
import json
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import fedmef
from fedmef.comparison import DEFAULT_METHODS, Comparison, Failure, PlannedRun, carry_out, plan_runs
from fedmef.comparison_summary import Row, comparison_table, summarize_comparison
from fedmef.data import DATASETS, load_dataset
from fedmef.errors import FedmefError, UserError
from fedmef.experiment import make_experiment, read_experiment
from fedmef.experiment_options import with_experiment_options
from fedmef.federation import check_names, evaluate_run, open_dataset
from fedmef.files import write_atomically
from fedmef.progress import ComparisonProgress, RunProgress, human_bytes
from fedmef.run_directory import Run
from fedmef.studies import SCALES, STUDIES, find_scale, find_study
from fedmef.studies.reproduction import (
    announcement,
    caption,
    check_directory,
    default_directory,
    study_table,
)

app = typer.Typer(
    help="Federated training of sparse convolutional networks on devices with little memory.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


class _StoppedError(FedmefError):
    exit_code = 130  # what a shell expects after Ctrl-C


@app.callback(invoke_without_command=True)
def common(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    """Set what all commands share; `--debug` itself is read by `main`."""
    if version:
        typer.echo(fedmef.__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
@with_experiment_options
def run(
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG.toml]", help="An experiment's file.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The run's directory (default: a new one in runs/).")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Go on with this interrupted run instead.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run in --out.")] = False,
    as_json: AsJson = False,
    overrides: dict[str, Any] = {},  # noqa: B006  (filled by with_experiment_options, never changed)
) -> None:
    """Train over many devices. Settings come from a TOML file and from options, which win.

    Without any, FedMef trains a 90 % sparse network on scikit-learn's digits.
    """
    if resume is not None:
        if config or out or overwrite:
            raise UserError(
                "--resume goes on with a run where it is: leave CONFIG, --out and --overwrite out"
            )
        opened = Run.open(resume)
        experiment = make_experiment({**opened.experiment.model_dump(), **overrides})
        before = opened.finished_rounds()
    else:
        experiment = read_experiment(config, overrides) if config else make_experiment(overrides)
        before = []

    check_names(experiment)
    dataset = open_dataset(experiment)  # before the bar, because it may show a progress of its own
    title = f"{experiment.method} on {experiment.dataset}"
    try:
        with RunProgress(title, experiment.rounds, Console(stderr=True), before) as progress:
            watch = progress.round_done
            if resume is not None:
                finished = fedmef.resume(resume, overrides, dataset=dataset, watch=watch)
            else:
                finished = fedmef.run(experiment, out, dataset=dataset, overwrite=overwrite, watch=watch)
    except fedmef.Interrupted as error:
        raise _StoppedError(str(error)) from None  # typer would swallow what a KeyboardInterrupt says
    _print_run(finished, as_json)


@app.command()
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
    as_json: AsJson = False,
    overrides: dict[str, Any] = {},  # noqa: B006  (filled by with_experiment_options, never changed)
) -> None:
    """Train several methods on the same data and partition; ends with one table.

    Finished runs in --out are reused and interrupted ones resumed.
    """
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
    _report_comparison(_carry_out(plan), out, reused, csv_file, as_json)


@app.command()
def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A table or figure; --list shows them.")
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="Show the studies and end.")] = False,
    scale_name: Annotated[
        str, typer.Option("--scale", metavar="|".join(SCALES), help="How much to run (default desk).")
    ] = "desk",
    seeds: Annotated[
        int | None, typer.Option(metavar="N", help="Seeds of every run (default 1; paper scale 5).")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory of the runs (default: runs/reproduce-NAME-SCALE)."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Repeat every run, even a finished one.")
    ] = False,
    data_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the data sets.")] = None,
    device: Annotated[str | None, typer.Option(help="Where tensors live: cpu, cuda, ...")] = None,
    engine: Annotated[str | None, typer.Option(help="auto, inline or processes.")] = None,
    workers: Annotated[int | None, typer.Option(metavar="N", help="Worker processes.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a table or figure of the paper; ends with our numbers beside the paper's.

    Finished runs in --out are reused and interrupted ones resumed.
    """
    if show_list:
        _print_facts({study.name: f"{study.title} ({study.source})" for study in STUDIES.values()}, as_json)
        return
    if name is None:
        raise UserError("reproduce: name a study; fedmef reproduce --list shows them")
    study, scale = find_study(name), find_scale(scale_name)
    machine = {"data_dir": data_dir, "device": device, "engine": engine, "workers": workers}
    given = {field: value for field, value in machine.items() if value is not None}
    experiments = study.experiments(scale, seeds, given)
    out = out or default_directory(study, scale)
    check_directory(study, scale, out)
    plan = plan_runs(experiments, out, overwrite=overwrite)
    typer.echo(announcement(study, scale, experiments, out), err=True)
    outcomes = _carry_out(plan)
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    rows = study.rows(scale, outcomes)
    about = caption(study, scale, experiments)
    if as_json:
        facts = {"study": study.name, "scale": scale, "runs": str(out), "caption": about, "rows": rows}
        typer.echo(json.dumps({**facts, "failures": _reasons(failures)}))
    else:
        # Off a terminal, rich would squeeze a wide table into 80 columns.
        Console(width=None if sys.stdout.isatty() else 120).print(study_table(rows))
        typer.echo(f"{about}\nThe claim: {study.shows}")
        _print_failures(failures)
    _raise_failures(failures, len(outcomes))


@app.command()
def evaluate(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="A finished run's directory.")],
    data_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the data sets.")] = None,
    device: Annotated[str | None, typer.Option(help="Where tensors live: cpu, cuda, ...")] = None,
    as_json: AsJson = False,
) -> None:
    """Test a run's final model, from its files alone."""
    opened = Run.open(directory)
    machine = {
        name: value for name, value in (("data_dir", data_dir), ("device", device)) if value is not None
    }
    opened.experiment = opened.experiment.model_copy(update=machine)
    score = evaluate_run(opened)
    if as_json:
        typer.echo(json.dumps({"test_accuracy": score.accuracy, "test_loss": score.loss}))
    else:
        typer.echo(f"{directory}: test accuracy {score.accuracy:.2%}, loss {score.loss:.4f}")


@app.command()
def data(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of: {', '.join(DATASETS)}.")],
    data_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the data sets.")] = None,
    download: Annotated[bool, typer.Option(help="Fetch what is missing.")] = True,
    as_json: AsJson = False,
) -> None:
    """Fetch or check a data set, and say what it holds and where."""
    dataset = load_dataset(name, data_dir, download=download)
    mean, deviation = dataset.statistics()
    facts = {
        "name": dataset.name,
        "train": len(dataset.train),
        "test": len(dataset.test),
        "classes": dataset.classes,
        "shape": list(dataset.shape),
        "mean": [round(value, 4) for value in mean.tolist()],
        "std": [round(value, 4) for value in deviation.tolist()],
        "folder": str(dataset.folder) if dataset.folder else "built in",
    }
    _print_facts(facts, as_json)


def _print_run(finished: Run, as_json: bool) -> None:
    summary = finished.summary
    if as_json:
        typer.echo(json.dumps({"run": str(finished.path), **summary}))
        return
    active, dense = summary["parameters"], summary["parameters_if_dense"]
    facts = {
        "test accuracy": f"{summary['test_accuracy']:.2%}",
        "parameters": f"{active:,} of {dense:,} ({active / dense:.1%})",
        "rounds": f"{summary['rounds']}, {summary['adjustments']} with an adjustment",
        "sent": f"{human_bytes(summary['bytes_down'])} down, {human_bytes(summary['bytes_up'])} up",
        "time": f"{summary['seconds']:.0f} s",
        "directory": str(finished.path),
    }
    _print_facts(facts, as_json=False)


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


def _carry_out(plan: Sequence[PlannedRun]) -> list[Run | Failure]:
    rounds = {run.path.name: run.experiment.rounds for run in plan if not run.finished}
    try:
        with ComparisonProgress(rounds, Console(stderr=True)) as progress:
            return carry_out(plan, progress)
    except fedmef.Interrupted as error:
        raise _StoppedError(str(error)) from None


def _report_comparison(
    outcomes: Sequence[Run | Failure], out: Path, reused: int, csv_file: Path | None, as_json: bool
) -> None:
    rows = summarize_comparison(outcomes)
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    if csv_file is not None:
        write_atomically(csv_file, _csv(rows).encode())
    if as_json:
        facts = {"runs": str(out), "rows": [asdict(row) for row in rows], "failures": _reasons(failures)}
        typer.echo(json.dumps(facts))
    else:
        Console().print(comparison_table(rows))
        _print_failures(failures)
        before = f", {reused} of them finished before" if reused else ""
        typer.echo(f"{len(outcomes)} runs in {out}{before}")
    _raise_failures(failures, len(outcomes))


def _reasons(failures: Sequence[Failure]) -> list[dict[str, str]]:
    return [{"run": str(failure.path), "reason": failure.reason} for failure in failures]


def _print_failures(failures: Sequence[Failure]) -> None:
    for failure in failures:
        # A traceback from a worker says what went wrong in its last line.
        typer.echo(f"failed: {failure.path.name}: {failure.reason.strip().splitlines()[-1]}")


def _raise_failures(failures: Sequence[Failure], runs: int) -> None:
    if failures:
        raise FedmefError(f"{len(failures)} of {runs} runs failed; the table has the others")


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


def _print_facts(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(facts))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        typer.echo(f"{name:{width}}  {value}")


def main() -> None:
    """Run the command line: 0 is success, 1 a failure, 2 a user's mistake; one line says what went wrong."""
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]  # it may stand anywhere
    try:
        code = app(arguments, standalone_mode=False)
    except typer.TyperException as error:
        code = _failed(f"{error.format_message()} (see --help)", 2, debug)
    except FedmefError as error:
        code = _failed(str(error), error.exit_code, debug)
    except Exception as error:
        code = _failed(f"{type(error).__name__}: {error} (--debug shows where)", 1, debug)
    sys.exit(code)


def _failed(message: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    typer.echo(f"fedmef: {message}", err=True)
    return code
