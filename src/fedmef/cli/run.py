"""`fedmef run`: one experiment."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import fedmef
from fedmef.cli.backend_note import BackendNote
from fedmef.cli.common import (
    AllowCode,
    AsJson,
    FaultPlan,
    StoppedError,
    Tensorboard,
    print_facts,
    shown_metrics,
    with_fault_plan,
)
from fedmef.cli.options import with_experiment_options
from fedmef.cli.plain_help import command_app
from fedmef.cli.progress import RunProgress
from fedmef.costs.units import human_bytes
from fedmef.errors import Interrupted, UserError
from fedmef.experiment.files import read_experiment
from fedmef.experiment.settings import make_experiment
from fedmef.runs.callbacks import Callback
from fedmef.runs.directory import Run
from fedmef.runs.records import Summary
from fedmef.runs.signals import ignore_signals
from fedmef.runs.tensorboard import EventFiles, check_tensorboard


@with_experiment_options
def run(
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG.toml]", help="An experiment's file.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The run's directory (default: a new one in runs/).")
    ] = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Resume this interrupted run.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run in --out.")] = False,
    allow_code: AllowCode = False,
    fault_plan: FaultPlan = None,
    tensorboard: Tensorboard = False,
    as_json: AsJson = False,
    overrides: dict[str, Any] = {},  # noqa: B006  (filled by with_experiment_options, never changed)
) -> None:
    """Train over many devices. Settings come from a TOML file and from options, which win.

    Without any, FedMef trains a 90 % sparse network on handwritten digits.
    """
    if tensorboard:
        check_tensorboard()
    overrides = with_fault_plan(overrides, fault_plan)
    events = EventFiles()
    console = Console(stderr=True)
    with closing(events), RunProgress(console) as progress:
        callbacks: list[Callback] = [BackendNote(console), progress, *([events] if tensorboard else [])]
        try:
            if resume is not None:
                if out or overwrite:
                    raise UserError("--resume continues a run where it is: leave --out and --overwrite out")
                changes = read_experiment(config, overrides).settings() if config else overrides
                was_finished = Run.open(resume).finished
                finished = fedmef.resume(
                    resume, changes, callbacks=callbacks, allow_code=allow_code, tell=progress.tell
                )
                if was_finished and tensorboard:
                    events.write_finished(finished)
            else:
                experiment = read_experiment(config, overrides) if config else make_experiment(overrides)
                finished = fedmef.run(
                    experiment, out, overwrite=overwrite, callbacks=callbacks, tell=progress.tell
                )
        except KeyboardInterrupt as error:
            ignore_signals()  # another one would take the place of the message
            if isinstance(error, Interrupted):
                raise StoppedError(error) from None
            written = "nothing was written" if resume is None else f"{resume} is as it was"
            raise StoppedError(Interrupted(f"stopped before the first round; {written}")) from None
    _print_run(finished, as_json)


def _accuracies(summary: Summary, names: Sequence[str] | None) -> dict[str, str]:
    """Who is served worst; nothing for a run of an earlier version."""
    facts = {}
    known = [(share, number) for number, share in enumerate(summary.class_accuracy) if share is not None]
    if known:
        worst, number = min(known)
        facts["worst class"] = f"{worst:.2%}, {names[number] if names else f'class {number}'}"
    if summary.device_accuracy_mean is not None and summary.device_accuracy_worst_tenth is not None:
        facts["devices"] = (
            f"{summary.device_accuracy_mean:.2%} on average, "
            f"{summary.device_accuracy_worst_tenth:.2%} the worst tenth"
        )
    return facts


def _print_run(finished: Run, as_json: bool) -> None:
    summary = finished.summary
    if as_json:
        print_facts({"run": str(finished.path), **summary.model_dump()}, as_json=True)
        return
    active, dense = summary.parameters, summary.parameters_if_dense
    facts = {
        "test accuracy": f"{summary.test_accuracy:.2%}",
        **{f"metric {name}": text for name, text in shown_metrics(summary.metrics).items()},
        **_accuracies(summary, finished.class_names),
        "parameters": f"{active:,} of {dense:,} ({active / dense:.1%})",
        "rounds": f"{summary.rounds}, {summary.adjustments} with an adjustment",
        "sent": f"{human_bytes(summary.bytes_down)} down, {human_bytes(summary.bytes_up)} up",
        "time": f"{summary.seconds:.0f} s",
        "backend": summary.backend_details,
        "directory": str(finished.path),
    }
    if summary.lost_updates or summary.rejected_updates:
        facts["updates"] = f"{summary.lost_updates} lost, {summary.rejected_updates} rejected"
    if summary.epsilon is not None:
        facts["privacy"] = f"ε = {summary.epsilon:.2f} at δ = {finished.experiment.delta:g}, for a device"
    if summary.problem:
        facts["problem"] = summary.problem
    print_facts(facts, as_json=False)


app = command_app(run)
