"""`fedmef cost`: what a device needs, estimated by the paper's formulas next to what is measured."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedmef.cli.common import (
    AsJson,
    Classes,
    ImageShape,
    given_images,
    items_of,
    print_notes,
    sparsities_of,
    wide_console,
)
from fedmef.cli.options import with_experiment_options
from fedmef.cli.plain_help import command_app
from fedmef.cli.progress import Waiting
from fedmef.costs.device_process import Shape
from fedmef.costs.facts import network_facts
from fedmef.costs.table import CostRow, Task, cost_rows
from fedmef.costs.units import counted
from fedmef.data.load import known_facts
from fedmef.errors import UserError
from fedmef.experiment.settings import Experiment, make_experiment
from fedmef.federation.preparation import check_names, open_dataset
from fedmef.methods import METHODS
from fedmef.models.initial import plain_network
from fedmef.studies.many import DEFAULT_METHODS, Comparison

PAPER_SAMPLES = 500  # of a device: CIFAR-10's images over 100 devices


@with_experiment_options
def cost(
    file: Annotated[str | None, typer.Argument(hidden=True)] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME", help=f"Which methods, or 'all' (default: {','.join(DEFAULT_METHODS)})."
        ),
    ] = None,
    sparsities: Annotated[
        str | None, typer.Option(metavar="X,X", help="Sparsities, for methods that have one.")
    ] = None,
    image_shape: ImageShape = None,
    classes: Classes = None,
    samples: Annotated[
        int | None,
        typer.Option(metavar="N", help="Images that a device has (default: an even share; 500 for a shape)."),
    ] = None,
    measure: Annotated[bool, typer.Option(help="Measure too: some seconds for each row.")] = True,
    tensors: Annotated[
        bool,
        typer.Option(
            help="For --json and --csv: PyTorch's tensors of a step by kind too, which takes longer."
        ),
    ] = False,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV instead of a table.")] = False,
    overrides: dict[str, Any] = {},  # noqa: B006  (filled by with_experiment_options, never changed)
) -> None:
    """Memory, traffic and time of a device: the paper's estimates next to measurements.

    Measured memory is a device's whole process: interpreter, libraries, messages and data included. A sparse
    method runs without PyTorch where the native kernels are there (--backend auto).
    """
    if file is not None:
        raise UserError(
            f"{file}: fedmef cost prints, and takes no file; its settings are options, and "
            "`fedmef cost --csv > out.csv` writes a table"
        )
    if as_json and as_csv:
        raise UserError("--json and --csv: leave one of them out")
    if tensors and not measure:
        raise UserError("--tensors and --no-measure: leave one of them out")
    if tensors and not (as_json or as_csv):
        raise UserError("--tensors: only --json and --csv print what it measures; give one of them")
    for one, many in (("method", methods), ("sparsity", sparsities)):
        if one in overrides and many is not None:
            raise UserError(f"--{one} and its plural say the same thing; leave one of them out")
    base = make_experiment(overrides)
    chosen: tuple[str, ...] = (base.method,) if "method" in overrides else DEFAULT_METHODS
    if methods is not None:
        chosen = tuple(METHODS) if methods == "all" else items_of("--methods", methods)
    comparison = Comparison(
        base,
        methods=chosen,
        seeds=(base.seed,),
        sparsities=(base.sparsity,) if sparsities is None else sparsities_of(sparsities),
    )
    experiments = comparison.experiments()
    for experiment in experiments:
        check_names(experiment)
    task = _task(base, given_images(image_shape, classes), samples)
    facts = network_facts(plain_network(base, task.image_shape, task.classes))
    waiting = Waiting(Console(stderr=True))
    try:
        shown = _telling(experiments, waiting) if measure else experiments
        rows = list(cost_rows(shown, facts, task, measured=measure, tensors=tensors))
    finally:
        waiting.stop()
    if as_json:
        typer.echo(json.dumps({**asdict(task), "batch_size": base.batch_size, "rows": _flat(rows)}))
    elif as_csv:
        typer.echo(_csv(_flat(rows)), nl=False)
    else:
        _print_rows(rows, base, task, samples_given=samples is not None or image_shape is None)


def _telling(experiments: Sequence[Experiment], waiting: Waiting) -> Iterator[Experiment]:
    """Each says that it is being measured, and how many there are."""
    for number, experiment in enumerate(experiments, 1):
        at = f" at sparsity {experiment.sparsity:g}" if experiment.sparsity else ""
        waiting.tell(f"measuring row {number} of {len(experiments)}: {experiment.method}{at}")
        yield experiment


def _task(base: Experiment, images: tuple[Shape, int] | None, samples: int | None) -> Task:
    if samples is not None and samples < 1:
        raise UserError(f"--samples {samples}: a device has at least 1 image")
    if images is not None:
        return Task(*images, samples or PAPER_SAMPLES)
    known = known_facts(base.dataset)
    if known is not None:
        shape, number, train = known.shape, known.classes, known.train
    else:
        dataset = open_dataset(base)
        shape, number, train = dataset.shape, dataset.classes, len(dataset.train)
    return Task(shape, number, samples or max(1, train // base.devices))


def _flat(rows: Sequence[CostRow]) -> list[dict[str, Any]]:
    return [row.flat() for row in rows]


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def cost_table(rows: Sequence[CostRow]) -> Table:
    """The rows for people; what was not measured has no column."""
    measured = rows[0].process is not None
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("method", overflow="fold", min_width=8)
    headings = ["spars.", "memory\nestim.\nMB", "proc.\nmeas.\nMB"]
    headings += ["exch.\nestim.\nMB", "exch.\nmeas.\nMB", "FLOPs\nestim.", "step\nmeas.\ns"]
    shown = [heading for heading in headings if measured or "meas." not in heading]
    for heading in shown:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        cells = {
            headings[0]: f"{row.sparsity:g}" if row.sparsity else "dense",
            headings[1]: _megabytes(row.bitmap.memory if row.bitmap else None),
            headings[2]: _megabytes(row.process.process if row.process else None),
            headings[3]: _megabytes(row.bitmap.exchange_adjusting if row.bitmap else None),
            headings[4]: _megabytes(row.exchange.adjusting if row.exchange else None),
            headings[5]: "-" if row.bitmap is None else f"{row.bitmap.flops:.2e}".replace("e+", "e"),
            headings[6]: "-" if row.process is None else f"{row.process.seconds:.3f}",
        }
        table.add_row(row.method, *(cells[heading] for heading in shown))
    return table


def _print_rows(rows: Sequence[CostRow], base: Experiment, task: Task, *, samples_given: bool) -> None:
    wide_console().print(cost_table(rows))
    shape = "x".join(map(str, task.image_shape))
    assumed = "" if samples_given else " (assumed; --samples takes another number)"
    notes = [
        f"{base.model}, images {shape}, {counted(task.classes, 'class', 'classes')}, "
        f"batch {base.batch_size}, {counted(base.local_epochs, 'epoch')} over "
        f"{counted(task.samples, 'image')}{assumed}. MB = 1e6 bytes.",
        "Estimated: the paper's formulas (ours by the same logic for methods that it has none for), for one "
        "device in a round that adjusts; sparse weights as a bitmap. FLOPs are multiply-adds.",
    ]
    if rows[0].process is not None and rows[0].dense is not None:
        native = [row.method for row in rows if row.process and row.process.backend == "native"]
        notes.append(
            "Measured: the most resident memory of a device's whole process: interpreter, libraries, "
            f"messages and data. Without PyTorch for {_names(native)}; with it for the others. PyTorch's "
            f"dense process (fedavg) has {_megabytes(rows[0].dense.process)} MB. The length of the real "
            "messages down and up, in a round that adjusts if the method has one. CPU seconds of a step."
        )
    print_notes(notes)


def _names(methods: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(methods)) or "none"


def _megabytes(count: float | None) -> str:
    return "-" if count is None else f"{count / 1e6:.4g}"


app = command_app(cost)
