"""What several commands share: options, printing facts, carrying out many runs and telling of failed ones."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedmef.comparison import ComparisonWatcher, Failure, PlannedRun, carry_out
from fedmef.errors import FedmefError, Interrupted
from fedmef.faults import read_fault_plan
from fedmef.progress import ComparisonProgress
from fedmef.run_directory import Run

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Tensorboard = Annotated[
    bool, typer.Option("--tensorboard", help="Write event files for TensorBoard into the run's directory.")
]
FaultPlan = Annotated[
    Path | None,
    typer.Option(
        "--fault-plan",
        metavar="FILE",
        help="Injected faults from a TOML file: [[fault]] tables with round, device and fault.",
        rich_help_panel="Injected faults",
    ),
]


class StoppedError(FedmefError):
    """Ctrl-C or SIGTERM: typer would swallow what a KeyboardInterrupt says."""

    def __init__(self, interrupted: Interrupted) -> None:
        super().__init__(str(interrupted))
        self.exit_code = 128 + interrupted.signal_number  # what a shell expects: 130 for Ctrl-C


def carry_out_shown(
    plan: Sequence[PlannedRun],
    watcher: Callable[[ComparisonWatcher], ComparisonWatcher] = lambda shown: shown,
) -> list[Run | Failure]:
    """Carry out runs under one progress display, which `watcher` may add another watcher to."""
    rounds = {run.path.name: run.experiment.rounds for run in plan if not run.finished}
    try:
        with ComparisonProgress(rounds, Console(stderr=True)) as progress:
            return carry_out(plan, watcher(progress))
    except Interrupted as error:
        raise StoppedError(error) from None


def with_fault_plan(overrides: Mapping[str, Any], file: Path | None) -> dict[str, Any]:
    """The settings with a file's faults added to those of `--faults`."""
    if file is None:
        return dict(overrides)
    faults = ",".join(filter(None, (overrides.get("faults"), read_fault_plan(file))))
    return {**overrides, "faults": faults}


def reasons(failures: Sequence[Failure]) -> list[dict[str, str]]:
    """Failed runs, for JSON."""
    return [{"run": str(failure.path), "reason": failure.reason} for failure in failures]


def print_failures(failures: Sequence[Failure]) -> None:
    """A line for each failed run."""
    for failure in failures:
        # A traceback from a worker says what went wrong in its last line.
        typer.echo(f"failed: {failure.path.name}: {failure.reason.strip().splitlines()[-1]}")


def raise_failures(failures: Sequence[Failure], runs: int) -> None:
    """End with exit code 1 when a run failed."""
    if failures:
        raise FedmefError(f"{len(failures)} of {runs} runs failed; the table has the others")


def print_facts(facts: dict[str, Any], as_json: bool) -> None:
    """Print names and values, a line each."""
    if as_json:
        typer.echo(json.dumps(facts))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        typer.echo(f"{name:{width}}  {value}")
