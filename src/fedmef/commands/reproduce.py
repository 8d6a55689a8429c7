"""`fedmef reproduce`: a table or figure of the paper."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedmef.commands.common import (
    AsJson,
    announce,
    carry_out_shown,
    print_facts,
    print_failures,
    raise_failures,
    reasons,
    wide_console,
)
from fedmef.comparison import Failure, plan_runs
from fedmef.errors import UserError
from fedmef.studies import SCALES, STUDIES, find_scale, find_study
from fedmef.studies.base import case_of
from fedmef.studies.reproduction import (
    adopt_finished,
    caption,
    check_directory,
    chosen_cases,
    default_directory,
    study_table,
)


def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A table or figure; --list shows them.")
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="Show the studies and end.")] = False,
    scale_name: Annotated[
        str, typer.Option("--scale", metavar="|".join(SCALES), help="How much to run.")
    ] = "desk",
    seeds: Annotated[
        int | None, typer.Option(metavar="N", help="Seeds of every run (default 1; paper scale 5).")
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
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Repeat every run, even a finished one.")
    ] = False,
    data_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the data sets.")] = None,
    device: Annotated[str | None, typer.Option(help="Where tensors live: cpu, cuda, ...")] = None,
    engine: Annotated[str | None, typer.Option(help="auto, inline, processes or flower.")] = None,
    workers: Annotated[int | None, typer.Option(metavar="N", help="Worker processes.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a table or figure of the paper; ends with our numbers beside the paper's.

    Finished runs in --out, or of other studies beside it, are reused and interrupted ones resumed.
    """
    if show_list:
        print_facts({study.name: f"{study.title} ({study.source})" for study in STUDIES.values()}, as_json)
        return
    if name is None:
        raise UserError("reproduce: name a study; fedmef reproduce --list shows them")
    study, scale = find_study(name), find_scale(scale_name)
    machine = {"data_dir": data_dir, "device": device, "engine": engine, "workers": workers}
    given = {field: value for field, value in machine.items() if value is not None}
    experiments = chosen_cases(study.experiments(scale, seeds, given), only or [])
    out = out or default_directory(study, scale)
    check_directory(study, scale, out)
    if not overwrite and (adopted := adopt_finished(experiments, out, scale)):
        typer.echo(f"{study.name}: {adopted} runs of other studies in {out.parent} are the same", err=True)
    plan = plan_runs(experiments, out, overwrite=overwrite)
    announce(f"{study.name} at {scale} scale: ", plan, out)
    outcomes = carry_out_shown(plan)
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    rows = study.rows(scale, outcomes, {case_of(run) for run in experiments})
    about = caption(study, scale, experiments)
    if as_json:
        facts = {"study": study.name, "scale": scale, "runs": str(out), "caption": about, "rows": rows}
        typer.echo(json.dumps({**facts, "claim": study.shows, "failures": reasons(failures)}))
    else:
        wide_console().print(study_table(rows))
        typer.echo(about if scale == "smoke" else f"{about}\nThe claim: {study.shows}")
        print_failures(failures)
    raise_failures(failures, len(outcomes))
