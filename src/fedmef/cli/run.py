"""`fedmef run`: one experiment."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import fedmef
from fedmef.cli.common import (
    AsJson,
    FaultPlan,
    StoppedError,
    Tensorboard,
    print_facts,
    waiting,
    with_fault_plan,
)
from fedmef.cli.options import with_experiment_options
from fedmef.cli.progress import RunProgress, human_bytes
from fedmef.costs.limit import check_device_memory
from fedmef.errors import UserError
from fedmef.experiment.resuming import resumed_experiment
from fedmef.experiment.settings import make_experiment, read_experiment
from fedmef.federation.api import new_directory
from fedmef.federation.preparation import check_names, open_dataset
from fedmef.runs.directory import Record, Run
from fedmef.runs.tensorboard import EventFiles, check_tensorboard


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
    fault_plan: FaultPlan = None,
    tensorboard: Tensorboard = False,
    as_json: AsJson = False,
    overrides: dict[str, Any] = {},  # noqa: B006  (filled by with_experiment_options, never changed)
) -> None:
    """Train over many devices. Settings come from a TOML file and from options, which win.

    Without any, FedMef trains a 90 % sparse network on scikit-learn's digits.
    """
    if tensorboard:
        check_tensorboard()
    overrides = with_fault_plan(overrides, fault_plan)
    if resume is not None:
        if out or overwrite:
            raise UserError("--resume goes on with a run where it is: leave --out and --overwrite out")
        opened = Run.open(resume)
        if config:
            overrides = read_experiment(config, overrides).model_dump()
        experiment = resumed_experiment(opened.experiment, overrides)
        if opened.finished and experiment.rounds == opened.experiment.rounds:  # its data need not be here
            if tensorboard:
                EventFiles().write_finished(opened)
            _print_run(opened, as_json)
            return
        before = opened.metrics if opened.finished else opened.finished_rounds()
    else:
        experiment = read_experiment(config, overrides) if config else make_experiment(overrides)
        before = []

    check_names(experiment)
    dataset = open_dataset(experiment)  # before the bar, because it may show a progress of its own
    title = f"{experiment.method} on {experiment.dataset}"
    with waiting() as tell:
        check_device_memory(experiment, dataset.shape, dataset.classes, tell)
    path = resume or out or new_directory(experiment)
    events = EventFiles()
    events.begin(path)
    try:
        with RunProgress(title, experiment.rounds, Console(stderr=True), before) as progress:

            def watch(record: Record) -> None:
                progress.round_done(record)
                if tensorboard:
                    events.round_done(record)

            if resume is not None:
                finished = fedmef.resume(resume, overrides, dataset=dataset, watch=watch)
            else:
                finished = fedmef.run(experiment, path, dataset=dataset, overwrite=overwrite, watch=watch)
    except fedmef.Interrupted as error:
        raise StoppedError(error) from None
    finally:
        events.close()
    if tensorboard:
        events.write_finished(finished)
    _print_run(finished, as_json)


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
    lost, rejected = (summary.get(f"{what}_updates", 0) for what in ("lost", "rejected"))
    if lost or rejected:
        facts["updates"] = f"{lost} lost, {rejected} rejected"
    if summary.get("epsilon") is not None:
        facts["privacy"] = f"ε = {summary['epsilon']:.2f} at δ = {finished.experiment.delta:g}, for a device"
    print_facts(facts, as_json=False)
