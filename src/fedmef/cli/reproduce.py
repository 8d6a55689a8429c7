"""`fedmef reproduce`: a table or figure of the paper."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedmef.cli.common import (
    AsJson,
    announce,
    carry_out_shown,
    print_facts,
    print_failures,
    print_notes,
    raise_failures,
    reasons,
    say,
    wide_console,
)
from fedmef.cli.plain_help import command_app
from fedmef.cli.tables import study_table
from fedmef.costs.units import counted
from fedmef.errors import UserError
from fedmef.experiment.settings import Experiment
from fedmef.runs.directory import Run
from fedmef.studies import STUDIES, find_study
from fedmef.studies.adoption import (
    adopt_finished,
    check_directory,
    chosen_cases,
    default_directory,
    find_finished,
    published_directory,
)
from fedmef.studies.many import Failure, plan_runs
from fedmef.studies.paper.base import MOST_SEEDS, Study, caption
from fedmef.studies.paper.scales import SCALES, find_scale


def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A table or figure; --list shows them.")
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="Show the studies and end.")] = False,
    scale_name: Annotated[
        str, typer.Option("--scale", metavar="|".join(SCALES), help="How much to run.")
    ] = "desk",
    seeds: Annotated[
        int | None,
        typer.Option(metavar="N", help="Seeds of every run (default 1; bench scale 3, paper scale 5)."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART", help="Only runs with this part in their name, as sparsity0.9; repeatable."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory of the runs (default: runs/reproduce-NAME-SCALE)."),
    ] = None,
    finished: Annotated[
        bool,
        typer.Option(
            "--finished",
            help="Train nothing: show finished runs, all seeds, in --out and next to it; without --out also "
            "those in ./results.",
        ),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Repeat every run, even a finished one.")
    ] = False,
    data_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the data sets.")] = None,
    accelerator: Annotated[str | None, typer.Option(help="Where tensors live: cpu, cuda, ...")] = None,
    engine: Annotated[str | None, typer.Option(help="auto, inline, processes or flower.")] = None,
    workers: Annotated[int | None, typer.Option(metavar="N", help="Worker processes.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a table or figure of the paper; ends with our numbers next to the paper's.

    Finished runs in --out, or of other studies next to it, are reused and interrupted ones resumed.
    """
    if show_list:
        _print_studies(as_json)
        return
    if name is None:
        raise UserError("reproduce: name a study; fedmef reproduce --list shows them")
    study, scale = find_study(name), find_scale(scale_name)
    machine = {"data_dir": data_dir, "accelerator": accelerator, "engine": engine, "workers": workers}
    given = {field: value for field, value in machine.items() if value is not None}
    places = [out] if out else [default_directory(study, scale), published_directory(study, scale)]
    out = places[0]
    count = MOST_SEEDS if finished and seeds is None else seeds
    experiments = chosen_cases(study.experiments(scale, count, given), only or [])
    if finished and overwrite:
        raise UserError("reproduce: --finished trains nothing, so there is nothing to --overwrite")
    outcomes: Mapping[str, Run | Failure | None]
    where = str(out)
    if finished:
        outcomes, where = _finished(study, experiments, places, all_seeds=seeds is None)
        experiments = {name: experiments[name] for name in outcomes}
        there = sum(run is not None for run in outcomes.values())
        said = f"{study.name} at {scale} scale: {there} of {counted(len(outcomes), 'run')} finished"
        typer.echo(f"{said}, in {where}", err=True)
    else:
        check_directory(study, scale, out)
        if not overwrite and (adopted := adopt_finished(experiments, out, scale)):
            say(f"{study.name}: {counted(adopted, 'run')} taken over from {out.parent}", error=True)
        plan = plan_runs(experiments, out, overwrite=overwrite)
        announce(f"{study.name} at {scale} scale: ", plan, out)
        outcomes = dict(zip(experiments, carry_out_shown(plan), strict=True))
    failures = [outcome for outcome in outcomes.values() if isinstance(outcome, Failure)]
    rows = study.rows(scale, outcomes)
    about = caption(study, scale, experiments)
    if as_json:
        facts = {"study": study.name, "scale": scale, "runs": where, "caption": about, "rows": rows}
        typer.echo(json.dumps({**facts, "claim": study.shows, "failures": reasons(failures)}))
    else:
        console = wide_console()
        console.print(study_table(rows, console.width))
        print_notes([about] if scale == "smoke" else [about, f"The claim: {study.shows}"])
        print_failures(failures)
    raise_failures(failures, len(outcomes))


def _finished(
    study: Study, experiments: Mapping[str, Experiment], places: Sequence[Path], *, all_seeds: bool
) -> tuple[dict[str, Run | None], str]:
    """What is finished, and in which directories; seeds after the last finished one are not asked for."""
    found = find_finished(experiments, places)
    there = [run for run in found.values() if run is not None]
    if not there:
        where = " or ".join(str(place) for place in places)
        raise UserError(f"there is no finished run of {study.name} in {where}, or next to it")
    last = max(run.experiment.seed for run in there)
    asked = {name: run for name, run in found.items() if not all_seeds or experiments[name].seed <= last}
    here = Path.cwd()
    folders = {run.path.parent for run in there}
    shown = (folder.relative_to(here) if folder.is_relative_to(here) else folder for folder in folders)
    return asked, ", ".join(sorted(map(str, shown)))


def _print_studies(as_json: bool) -> None:
    about = {name: f"{(study := find_study(name)).title} ({study.source})" for name in STUDIES}
    if as_json:
        print_facts(about, as_json=True)
        return
    table = Table.grid("", "", padding=(0, 2, 0, 0))
    table.columns[0].no_wrap = True
    for name, text in about.items():
        table.add_row(name, text)
    wide_console().print(table)


app = command_app(reproduce)
