"""`fedmef data`: fetch or check a data set."""

from pathlib import Path
from typing import Annotated

import typer

from fedmef.cli.common import AsJson, print_facts
from fedmef.cli.plain_help import command_app
from fedmef.data import DATASETS, load_dataset


def data(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of: {', '.join(DATASETS)}.")],
    data_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the data sets.")] = None,
    download: Annotated[bool, typer.Option(help="Fetch what is missing.")] = True,
    as_json: AsJson = False,
) -> None:
    """Fetch or check a data set, and say what it holds and where."""
    dataset = load_dataset(name, data_dir, download=download)
    mean, deviation = dataset.statistics
    facts = {
        "name": dataset.name,
        "train": len(dataset.train),
        "test": len(dataset.test),
        "classes": dataset.classes,
        "shape": list(dataset.shape),
        "mean": [round(value, 4) for value in mean],
        "std": [round(value, 4) for value in deviation],
        "folder": str(dataset.folder) if dataset.folder else "built in",
    }
    print_facts(facts, as_json)


app = command_app(data)
