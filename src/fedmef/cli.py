"""The commands, thin: each reads its arguments, calls the library and prints."""

import json
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import fedmef
from fedmef.data import DATASETS, load_dataset
from fedmef.errors import FedmefError, UserError
from fedmef.experiment import make_experiment, read_experiment
from fedmef.experiment_options import with_experiment_options
from fedmef.federation import check_names, evaluate_run, open_dataset
from fedmef.progress import RunProgress, human_bytes
from fedmef.run_directory import Run

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
        experiment = make_experiment({**Run.open(resume).experiment.model_dump(), **overrides})
    else:
        experiment = read_experiment(config, overrides) if config else make_experiment(overrides)

    check_names(experiment)
    dataset = open_dataset(experiment)  # before the bar, because it may show a progress of its own
    title = f"{experiment.method} on {experiment.dataset}"
    try:
        with RunProgress(title, experiment.rounds, Console(stderr=True)) as progress:
            watch = progress.round_done
            if resume is not None:
                finished = fedmef.resume(resume, overrides, dataset=dataset, watch=watch)
            else:
                finished = fedmef.run(experiment, out, dataset=dataset, overwrite=overwrite, watch=watch)
    except fedmef.Interrupted as error:
        raise _StoppedError(str(error)) from None  # typer would swallow what a KeyboardInterrupt says
    _print_run(finished, as_json)


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
