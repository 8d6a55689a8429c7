"""What several commands share: options, printing facts, carrying out many runs and telling of failed ones."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedmef.cli.progress import ManyRunsProgress
from fedmef.costs.device_process import Shape
from fedmef.costs.units import counted
from fedmef.errors import FedmefError, Interrupted, UserError, printable
from fedmef.experiment.faults import read_fault_plan
from fedmef.experiment.settings import make_experiment
from fedmef.runs.callbacks import Callback
from fedmef.runs.directory import Run
from fedmef.runs.signals import ignore_signals
from fedmef.studies.many import Failure, PlannedRun, carry_out

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
AllowCode = Annotated[
    bool,
    typer.Option("--allow-code", help="Run code that the directory's config.toml names (module:name)."),
]
Tensorboard = Annotated[
    bool, typer.Option("--tensorboard", help="Write event files for TensorBoard into the run's directory.")
]
FaultPlan = Annotated[
    Path | None,
    typer.Option(
        "--fault-plan",
        metavar="FILE",
        help="Injected faults from a TOML file: [[fault]] tables with round (from 0), device and fault.",
        rich_help_panel="Injected faults",
    ),
]
ImageShape = Annotated[
    str | None,
    typer.Option(metavar="CxHxW", help="Shape of an image, such as 3x32x32, in place of a data set's."),
]
DEFAULT_CLASSES = 10
Classes = Annotated[
    int | None, typer.Option(metavar="N", help=f"With --image-shape: classes (default {DEFAULT_CLASSES}).")
]


class StoppedError(FedmefError):
    """Ctrl-C or SIGTERM ends the command: typer would swallow what a KeyboardInterrupt says."""

    def __init__(self, interrupted: Interrupted) -> None:
        super().__init__(str(interrupted))
        self.exit_code = 128 + interrupted.signal_number  # what a shell expects: 130 for Ctrl-C


def say(line: str, *, error: bool = False) -> None:
    """Print one line. It may name what a stranger wrote: nothing in it commands the terminal."""
    typer.echo(printable(line), err=error)


def carry_out_shown(plan: Sequence[PlannedRun], callbacks: Sequence[Callback] = ()) -> list[Run | Failure]:
    """Carry out runs under one progress display."""
    pending = [run for run in plan if not run.finished]
    rounds = {run.path.name: (run.rounds_before, run.experiment.rounds) for run in pending}
    with ManyRunsProgress(rounds, Console(stderr=True)) as progress:
        try:
            return carry_out(plan, [progress, *callbacks])
        except Interrupted as error:
            ignore_signals()  # another one would take the place of the message
            raise StoppedError(error) from None


def with_fault_plan(overrides: Mapping[str, Any], file: Path | None) -> dict[str, Any]:
    """The settings with a file's faults added to those of `--faults`."""
    if file is None:
        return dict(overrides)
    faults = ",".join(filter(None, (overrides.get("faults"), read_fault_plan(file))))
    return {**overrides, "faults": faults}


def given_images(image_shape: str | None, classes: int | None) -> tuple[Shape, int] | None:
    """The shape and the classes that options give; None when they leave it to the data set."""
    if image_shape is None:
        if classes is not None:
            raise UserError(f"--classes {classes}: a data set has its own; it goes with --image-shape")
        return None
    parts = image_shape.lower().split("x")
    if len(parts) != 3 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UserError(f"--image-shape {image_shape}: write channels x height x width, for example 3x32x32")
    if classes is not None and classes < 1:
        raise UserError(f"--classes {classes}: give at least 1")
    channels, height, width = map(int, parts)
    return (channels, height, width), DEFAULT_CLASSES if classes is None else classes


def items_of(option: str, text: str) -> tuple[str, ...]:
    """The items of an option that takes several."""
    items = tuple(item.strip() for item in text.split(","))
    if not all(items):
        raise UserError(f"{option} '{text}': an item is missing; write them with a comma between two")
    return items


def sparsities_of(text: str) -> tuple[float, ...]:
    """Checked as a single sparsity is."""
    return tuple(make_experiment({"sparsity": item}).sparsity for item in items_of("--sparsities", text))


def announce(title: str, plan: Sequence[PlannedRun], out: Path) -> None:
    """What is about to happen, in a line, on a terminal or not."""
    rounds = sum(run.experiment.rounds - run.rounds_before for run in plan if not run.finished)
    what = f"{counted(len(plan), 'run')}{finished_before(plan)}, {counted(rounds, 'round')} to do, in {out}"
    say(f"{title}{what}", error=True)


def finished_before(plan: Sequence[PlannedRun]) -> str:
    """`, 3 of them finished before`, or nothing. Ask before the plan is carried out."""
    reused = sum(run.finished for run in plan)
    which = f"{reused} of them " if len(plan) > 1 else ""
    return f", {which}finished before" if reused else ""


def reasons(failures: Sequence[Failure]) -> list[dict[str, str]]:
    """Failed runs, for JSON."""
    return [{"run": str(failure.path), "reason": failure.reason} for failure in failures]


def print_failures(failures: Sequence[Failure]) -> None:
    """A line for each failed run."""
    for failure in failures:
        # A traceback from a worker says what went wrong in its last line.
        say(f"failed: {failure.path.name}: {failure.reason.strip().splitlines()[-1]}")


def raise_failures(failures: Sequence[Failure], runs: int) -> None:
    """End with exit code 1 when a run failed."""
    if failures:
        message = f"{len(failures)} of {counted(runs, 'run')} failed; the table has the others"
        raise FedmefError(message) from failures[0].error  # --debug shows where the first one failed


def print_facts(facts: dict[str, Any], as_json: bool) -> None:
    """Print names and values, a line each."""
    if as_json:
        typer.echo(json.dumps(facts))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        say(f"{name:{width}}  {value}")


def shown_metrics(metrics: Mapping[str, float | None]) -> dict[str, str]:
    """The user's own, as text."""
    return {name: "no value" if value is None else f"{value:.4g}" for name, value in metrics.items()}


def wide_console() -> Console:
    """As wide as the terminal, or as COLUMNS says; elsewhere rich would squeeze tables into 80 columns."""
    return Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160)


def print_notes(notes: Sequence[str]) -> None:
    """What a table's numbers mean, below it."""
    console = wide_console()
    for note in notes:
        console.print(printable(note), style="dim", markup=False, highlight=False)
