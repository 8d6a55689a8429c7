"""`fedmef plan`: the preferred setting that fits a device's memory."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedmef.cli.backend_note import note_backend
from fedmef.cli.common import AsJson, Classes, ImageShape, given_images
from fedmef.cli.options import with_experiment_options
from fedmef.cli.plain_help import command_app
from fedmef.cli.progress import Waiting
from fedmef.costs.device_process import Shape, measure_torch_dense
from fedmef.costs.estimate import Setting, estimate, find_terms
from fedmef.costs.facts import NetworkFacts, network_facts
from fedmef.costs.limit import MARGIN
from fedmef.costs.plan import Candidate, plan_memory
from fedmef.costs.units import human_bytes
from fedmef.errors import FedmefError
from fedmef.experiment.files import read_experiment
from fedmef.experiment.settings import Experiment, make_experiment
from fedmef.federation.preparation import check_names, open_dataset
from fedmef.models.initial import plain_network


@with_experiment_options
def plan(
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG.toml]", help="An experiment's file.")
    ] = None,
    image_shape: ImageShape = None,
    classes: Classes = None,
    as_json: AsJson = False,
    overrides: dict[str, Any] = {},  # noqa: B006  (filled by with_experiment_options, never changed)
) -> None:
    """Find the preferred setting that fits --device-memory, by measuring.

    The memory is that of a device's whole process: interpreter, libraries, messages and data included. Where
    the native kernels are there, a sparse method runs without PyTorch (--backend auto).

    Nothing is trained: an order of preference stands for accuracy. Low weight sparsity counts most, then low
    activation sparsity, the cache in fp32 and a large batch. What is given as an option stays as it is;
    --batch-size is the largest that is tried.
    """
    experiment = read_experiment(config, overrides) if config else make_experiment(overrides)
    check_names(experiment)
    images = given_images(image_shape, classes)
    if images is None:
        dataset = open_dataset(experiment)
        images = dataset.shape, dataset.classes
    console = Console(stderr=True)
    waiting = Waiting(console)
    try:
        waiting.tell("building the network")
        network = plain_network(experiment, *images)
        note_backend(console, experiment, network)
        candidates = plan_memory(experiment, *images, [*overrides.keys() - {"batch_size"}], waiting.tell)
        waiting.tell("measuring PyTorch's dense device, to compare with")
        dense = _dense(experiment, *images)
    finally:
        waiting.stop()
    facts = network_facts(network)
    estimated = [_estimated(experiment, candidate, facts) for candidate in candidates]
    if as_json:
        answer = {"device_memory": experiment.device_memory, "torch_dense_process": dense}
        typer.echo(json.dumps({**answer, "ranked": _rows(candidates, estimated)}))
        return
    assert experiment.device_memory is not None
    typer.echo("preferred first: lower s_m, then lower s_a, then fp32, then the larger batch")
    typer.echo(f"{'':2}{'s_m':>6}{'s_a':>6}{'cache':>7}{'batch':>7}{'formula':>12}{'needs':>12}")
    best = next(candidate for candidate in candidates if candidate.fits)
    for candidate, formula in zip(candidates, estimated, strict=True):
        mark = ">" if candidate is best else ""
        said = "-" if formula is None else human_bytes(formula)
        needs = "-" if candidate.needed is None else human_bytes(candidate.needed)
        verdict = "not possible" if candidate.problem else "fits" if candidate.fits else "too much"
        typer.echo(
            f"{mark:2}{candidate.sparsity:>6g}{candidate.activation_sparsity:>6g}{candidate.cache_dtype:>7}"
            f"{candidate.batch_size:>7}{said:>12}{needs:>12}  {verdict}"
        )
    typer.echo(
        f"needs: measured, a device's whole process on the {best.backend} backend; {MARGIN:.0%} of "
        f"{human_bytes(experiment.device_memory)} stay free; formula: the paper's, for training alone"
    )
    if dense is not None:
        typer.echo(f"PyTorch's dense process (fedavg, batch {experiment.batch_size}): {human_bytes(dense)}")
    if image_shape and "dataset" not in overrides:
        typer.echo(f"Planned for {image_shape} images. To run it, name data of this shape:")
        overrides = {"dataset": "YOURS", **overrides}
    else:
        typer.echo("To run it:")
    typer.echo(run_command(config, overrides, best))


def run_command(config: Path | None, overrides: Mapping[str, Any], best: Candidate) -> str:
    """What was given to `fedmef plan`, with the plan's setting, as a command for a shell."""
    words = ["fedmef", "run", *([str(config)] if config else [])]
    for name, value in {**overrides, **_setting(best)}.items():
        option = name.replace("_", "-")
        words += (
            [f"--{'' if value else 'no-'}{option}"]
            if isinstance(value, bool)
            else [f"--{option}", str(value)]
        )
    return shlex.join(words)


def _estimated(experiment: Experiment, candidate: Candidate, facts: NetworkFacts) -> float | None:
    """Bytes by the paper's formula; None for a method that has none."""
    chosen = experiment.model_copy(update=_setting(candidate))
    found = estimate(experiment.method, find_terms(facts, Setting.of(chosen, chosen.batch_size)))
    return None if found is None else found.memory


def _dense(experiment: Experiment, shape: Shape, classes: int) -> int | None:
    """Bytes of PyTorch's dense process; None when this machine has too little memory for it."""
    try:
        return measure_torch_dense(experiment, shape, classes).process
    except FedmefError:
        return None


def _setting(candidate: Candidate) -> dict[str, Any]:
    names = ("sparsity", "activation_sparsity", "cache_dtype", "batch_size")
    return {name: getattr(candidate, name) for name in names}


def _rows(candidates: list[Candidate], estimated: list[float | None]) -> list[dict[str, Any]]:
    best = next(candidate for candidate in candidates if candidate.fits)
    return [
        asdict(candidate) | {"estimated": formula, "chosen": candidate is best}
        for candidate, formula in zip(candidates, estimated, strict=True)
    ]


app = command_app(plan)
