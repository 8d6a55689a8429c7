"""`fedmef evaluate`: test a finished run's model."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedmef.cli.common import AllowCode, AsJson, say, shown_metrics
from fedmef.cli.plain_help import command_app
from fedmef.experiment.names import load_part
from fedmef.federation.api import evaluate_run
from fedmef.runs.directory import Run


def evaluate(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="A finished run's directory.")],
    data_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the data sets.")] = None,
    accelerator: Annotated[str | None, typer.Option(help="Where tensors live: cpu, cuda, ...")] = None,
    allow_code: AllowCode = False,
    as_json: AsJson = False,
) -> None:
    """Test a finished run's model. It needs the run's data set, but not its model's code."""
    opened = Run.open(directory)
    machine = {
        name: value
        for name, value in (("data_dir", data_dir), ("accelerator", accelerator))
        if value is not None
    }
    if accelerator not in (None, "cpu"):
        load_part("fedmef.nn.backend", "check_accelerator")(accelerator)
    opened.experiment = opened.experiment.model_copy(update=machine)
    score = evaluate_run(opened, allow_code=allow_code)
    if as_json:
        scores = {"test_accuracy": score.accuracy, "test_loss": score.loss, "metrics": score.metrics}
        typer.echo(json.dumps(scores))
    else:
        own = "".join(f", {name} {text}" for name, text in shown_metrics(score.metrics).items())
        say(f"{directory}: test accuracy {score.accuracy:.2%}, loss {score.loss:.4f}{own}")


app = command_app(evaluate)
