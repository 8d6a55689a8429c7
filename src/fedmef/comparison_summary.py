"""What a comparison found: a row for every method and sparsity, over all its seeds, and the table of rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from rich.table import Table

from fedmef.comparison import DENSE_METHODS, Failure
from fedmef.errors import UserError
from fedmef.experiment import MACHINE_FIELDS, Experiment
from fedmef.progress import human_bytes
from fedmef.run_directory import Run

# Rows of one table share these; a method's own settings may differ between rows.
SHARED_FIELDS = (
    *("dataset", "synthetic_size", "synthetic_train", "synthetic_test"),
    *("model", "width", "stem", "rounds"),
    *("devices", "devices_per_round", "partition", "alpha"),
)


@dataclass(frozen=True)
class Row:
    """One method at one sparsity, over its seeds; numbers are None where no seed was finished.

    Attributes:
        sparsity: 0 for dense methods.
        seeds: of the finished runs.
        failed_seeds: of the others.
        accuracy: mean final test accuracy.
        accuracy_std: its sample standard deviation (n - 1); None for a single seed.
        best_accuracy: mean of each run's best.
        adjustment_drop: mean test accuracy lost at an adjustment (before - after); None without adjustments.
        bytes_per_round: up and down, all devices of a round.
        seconds: mean time of a run.
        parameters, parameters_if_dense: of the final model.
    """

    method: str
    sparsity: float
    seeds: tuple[int, ...]
    failed_seeds: tuple[int, ...]
    accuracy: float | None
    accuracy_std: float | None
    best_accuracy: float | None
    adjustment_drop: float | None
    bytes_per_round: float | None
    seconds: float | None
    parameters: int | None
    parameters_if_dense: int | None


def summarize_comparison(outcomes: Sequence[Run | Failure]) -> list[Row]:
    """A row for each method and sparsity, in the order of their first run."""
    for other in outcomes[1:]:
        _check_same(outcomes[0], other, SHARED_FIELDS)
    rows: dict[tuple[str, float], list[Run | Failure]] = {}
    for outcome in outcomes:
        rows.setdefault((outcome.experiment.method, _weight_sparsity(outcome.experiment)), []).append(outcome)
    return [summarize_seeds(row) for row in rows.values()]


def summarize_seeds(outcomes: Sequence[Run | Failure]) -> Row:
    """The row of runs that differ in nothing but their seeds."""
    experiment = outcomes[0].experiment
    sparsity = _weight_sparsity(experiment)
    ignored = MACHINE_FIELDS | {"seed"} | ({"sparsity"} if experiment.method in DENSE_METHODS else set())
    fixed = [field for field in Experiment.model_fields if field not in ignored]
    seeds: dict[int, Path] = {}
    for outcome in outcomes:
        _check_same(outcomes[0], outcome, fixed)
        seed = outcome.experiment.seed
        if seed in seeds:
            raise UserError(f"{seeds[seed]} and {outcome.path} are the same experiment; leave one out")
        seeds[seed] = outcome.path

    runs = [outcome for outcome in outcomes if isinstance(outcome, Run)]
    results = [run.summary for run in runs]
    drops = [drop for run in runs for drop in _adjustment_drops(run)]
    traffic = [(result["bytes_down"] + result["bytes_up"]) / result["rounds"] for result in results]
    accuracies = [result["test_accuracy"] for result in results]
    return Row(
        method=experiment.method,
        sparsity=sparsity,
        seeds=tuple(run.experiment.seed for run in runs),
        failed_seeds=tuple(failed.experiment.seed for failed in outcomes if isinstance(failed, Failure)),
        accuracy=_mean(accuracies),
        accuracy_std=stdev(accuracies) if len(accuracies) > 1 else None,
        best_accuracy=_mean([result["best_test_accuracy"] for result in results]),
        adjustment_drop=_mean(drops),
        bytes_per_round=_mean(traffic),
        seconds=_mean([result["seconds"] for result in results]),
        parameters=results[0]["parameters"] if results else None,
        parameters_if_dense=results[0]["parameters_if_dense"] if results else None,
    )


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _weight_sparsity(experiment: Experiment) -> float:
    return 0.0 if experiment.method in DENSE_METHODS else experiment.sparsity


def _adjustment_drops(run: Run) -> list[float]:
    try:
        return [
            record["accuracy_before_adjustment"] - record["accuracy_after_adjustment"]
            for record in run.metrics
            if record["adjusted"]
        ]
    except (KeyError, TypeError) as error:
        raise UserError(f"{run.path} is damaged: a record of its metrics is not whole ({error})") from None


def _check_same(one: Run | Failure, other: Run | Failure, fields: Sequence[str]) -> None:
    for field in fields:
        first, second = getattr(one.experiment, field), getattr(other.experiment, field)
        if first != second:
            raise UserError(
                f"{one.path} and {other.path} cannot be compared: "
                f"{field} = {first} in the one, {second} in the other"
            )


def comparison_table(rows: Sequence[Row]) -> Table:
    """The rows for people, in 80 columns: accuracies and drops in percent, traffic up and down per round."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("method", overflow="fold")
    for heading in ("sparsity", "accuracy %", "best %", "drop", "traffic", "time", "params", "seeds"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _cells(row: Row) -> list[str]:
    spread = "" if row.accuracy_std is None else f" ± {100 * row.accuracy_std:.2f}"
    asked = len(row.seeds) + len(row.failed_seeds)
    return [
        row.method,
        f"{row.sparsity:g}" if row.sparsity else "dense",
        "failed" if row.accuracy is None else f"{100 * row.accuracy:.2f}{spread}",
        "-" if row.best_accuracy is None else f"{100 * row.best_accuracy:.2f}",
        "-" if row.adjustment_drop is None else f"{100 * row.adjustment_drop:z.2f}",
        "-" if row.bytes_per_round is None else human_bytes(row.bytes_per_round),
        "-" if row.seconds is None else human_time(row.seconds),
        "-" if row.parameters is None else _human_count(row.parameters),
        f"{len(row.seeds)}/{asked}" if row.failed_seeds else f"{asked}",
    ]


def _human_count(count: int) -> str:
    return (
        f"{count:,}" if count < 10_000 else f"{count / 1e3:.1f} k" if count < 1e6 else f"{count / 1e6:.2f} M"
    )


def human_time(seconds: float) -> str:
    """`12.3 s`, `4.5 m` or `2.1 h`."""
    for unit, length in (("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"
