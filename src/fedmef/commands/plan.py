"""`fedmef plan`: the most accurate setting that fits a device's memory."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from fedmef.commands.common import AsJson, waiting
from fedmef.costs.limit import MARGIN
from fedmef.costs.plan import Candidate, plan_memory
from fedmef.errors import UserError
from fedmef.experiment import make_experiment, read_experiment
from fedmef.experiment_options import with_experiment_options
from fedmef.preparation import check_names, open_dataset
from fedmef.progress import human_bytes


@with_experiment_options
def plan(
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG.toml]", help="An experiment's file.")
    ] = None,
    image_shape: Annotated[
        str | None,
        typer.Option(metavar="CxHxW", help="Shape of an image, such as 3x32x32 (default: the data set's)."),
    ] = None,
    classes: Annotated[int, typer.Option(min=1, help="Classes, with --image-shape.")] = 10,
    as_json: AsJson = False,
    overrides: dict[str, Any] = {},  # noqa: B006  (filled by with_experiment_options, never changed)
) -> None:
    """Find the most accurate setting that fits --device-memory, by measuring.

    Weight sparsity counts most, then activation sparsity, the cache's type and the batch size. Those given as
    options stay as they are; --batch-size is the largest that is tried.
    """
    experiment = read_experiment(config, overrides) if config else make_experiment(overrides)
    check_names(experiment)
    if image_shape is None:
        dataset = open_dataset(experiment)
        shape, classes = dataset.shape, dataset.classes
    else:
        shape = _parse_shape(image_shape)
    with waiting() as tell:
        candidates = plan_memory(experiment, shape, classes, [*overrides.keys() - {"batch_size"}], tell)
    if as_json:
        typer.echo(json.dumps({"device_memory": experiment.device_memory, "ranked": _rows(candidates)}))
        return
    assert experiment.device_memory is not None
    typer.echo("preferred first: lower s_m, then lower s_a, then fp32, then the larger batch")
    typer.echo(f"{'':2}{'s_m':>6}{'s_a':>6}{'cache':>7}{'batch':>7}{'needs':>12}")
    best = next(candidate for candidate in candidates if candidate.fits)
    for candidate in candidates:
        mark = ">" if candidate is best else ""
        needs = "cannot be" if candidate.needed is None else human_bytes(candidate.needed)
        typer.echo(
            f"{mark:2}{candidate.sparsity:>6g}{candidate.activation_sparsity:>6g}{candidate.cache_dtype:>7}"
            f"{candidate.batch_size:>7}{needs:>12}  {'fits' if candidate.fits else 'too much'}"
        )
    typer.echo(f"measured; {MARGIN:.0%} of {human_bytes(experiment.device_memory)} stay free. To run it:")
    typer.echo(
        f"fedmef run … --sparsity {best.sparsity:g} --activation-sparsity {best.activation_sparsity:g} "
        f"--cache-dtype {best.cache_dtype} --batch-size {best.batch_size} "
        f"--device-memory {experiment.device_memory / 1e6:g}MB"
    )


def _rows(candidates: list[Candidate]) -> list[dict[str, Any]]:
    best = next(candidate for candidate in candidates if candidate.fits)
    return [asdict(candidate) | {"chosen": candidate is best} for candidate in candidates]


def _parse_shape(text: str) -> tuple[int, int, int]:
    sizes = re.fullmatch(r"(\d+)x(\d+)x(\d+)", text)
    if sizes is None or min(map(int, sizes.groups())) < 1:
        raise UserError(f"image_shape = '{text}': must be channels x height x width, such as 3x32x32")
    channels, height, width = map(int, sizes.groups())
    return channels, height, width
