"""`fedmef evaluate` and `fedmef data`: what is there."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedmef.cli.common import AsJson, print_facts
from fedmef.data import DATASETS, load_dataset
from fedmef.federation.api import evaluate_run
from fedmef.runs.directory import Run


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
    print_facts(facts, as_json)
