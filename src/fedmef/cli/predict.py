"""`fedmef predict`: what a finished run's model says of images."""

import json
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from fedmef.cli.common import AllowCode, AsJson, say
from fedmef.cli.plain_help import command_app
from fedmef.federation.prediction import predict_files
from fedmef.runs.directory import Run


def predict(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="A finished run's directory.")],
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGE...", help="Image files; any size, they are resized.")
    ],
    top: Annotated[int, typer.Option(min=1, metavar="N", help="How many classes to name.")] = 1,
    allow_code: AllowCode = False,
    as_json: AsJson = False,
) -> None:
    """Name the most likely classes of images, by a finished run's model.

    It needs no data set, and no code of its model.
    """
    run = Run.open(directory)
    probabilities = predict_files(run, images, allow_code=allow_code)
    names = run.class_names or tuple(f"class {number}" for number in range(probabilities.shape[1]))
    best = np.argsort(-probabilities, axis=1, kind="stable")[:, :top]
    if as_json:
        rows = [
            {
                "image": str(image),
                "classes": chosen.tolist(),
                "names": [names[number] for number in chosen],
                "probabilities": row[chosen].tolist(),
            }
            for image, row, chosen in zip(images, probabilities, best, strict=True)
        ]
        typer.echo(json.dumps(rows))
        return
    for image, row, chosen in zip(images, probabilities, best, strict=True):
        named = ", ".join(f"{names[number]} ({row[number]:.1%})" for number in chosen)
        say(f"{image}: {named}")


app = command_app(predict)
