"""What runs found: a row for every setting, over all its seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fedmef.errors import UserError
from fedmef.experiment.settings import MACHINE_FIELDS, Experiment
from fedmef.methods import weight_sparsity
from fedmef.runs.directory import Run
from fedmef.studies.many import Failure

# Rows of one table share these; other settings may differ between rows, which then say so.
SHARED_FIELDS = (
    *("dataset", "synthetic_size", "synthetic_train", "synthetic_test"),
    *("model", "width", "stem"),
    *("rounds", "devices", "partition"),
)
AT_CHANCE = 1.25  # times the accuracy of guessing; test sets are finite


@dataclass(frozen=True)
class Row:
    """One setting over its seeds; numbers are None where no seed was finished.

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
        variant: the settings that tell it from other rows of its method and sparsity: `alpha 0.1`.
        warning: why its accuracy means little; "" when nothing speaks against it.
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
    variant: str
    warning: str

    @property
    def label(self) -> str:
        """`fedmef, alpha 0.1`: its name where a column has the sparsity."""
        return f"{self.method}, {self.variant}" if self.variant else self.method

    @property
    def name(self) -> str:
        """`fedmef 0.9, alpha 0.1`, or `fedavg`."""
        sparse = f"{self.method} {self.sparsity:g}" if self.sparsity else self.method
        return f"{sparse}, {self.variant}" if self.variant else sparse


def summarize_comparison(outcomes: Sequence[Run | Failure]) -> list[Row]:
    """A row for each setting, in the order of their first run."""
    for other in outcomes[1:]:
        _check_same(outcomes[0], other, SHARED_FIELDS)
    groups = [[outcomes[place] for place in group] for group in group_seeds([o.experiment for o in outcomes])]
    differences = variants([group[0].experiment for group in groups])
    return [
        _summarize(group, ", ".join(f"{name} {value}" for name, value in different.items()))
        for group, different in zip(groups, differences, strict=True)
    ]


def group_seeds(experiments: Sequence[Experiment]) -> list[list[int]]:
    """Places of the experiments that differ in nothing but their seeds, in the order of the first of each."""
    groups: dict[str, list[int]] = {}
    for place, experiment in enumerate(experiments):
        groups.setdefault(str(_settings(experiment)), []).append(place)
    return list(groups.values())


def variants(experiments: Sequence[Experiment]) -> list[dict[str, Any]]:
    """The settings that tell each of these rows from the others of its method and sparsity; often none."""
    rows = [_settings(experiment) for experiment in experiments]
    found = []
    for row in rows:
        kin = [other for other in rows if all(other[name] == row[name] for name in ("method", "sparsity"))]
        found.append({name: value for name, value in row.items() if any(k[name] != value for k in kin)})
    return found


def unnamed_differences(experiments: Sequence[Experiment]) -> list[str]:
    """Settings in which these rows differ although some row's name does not say so."""
    rows, told = [_settings(experiment) for experiment in experiments], variants(experiments)
    return [
        name
        for name in rows[0]
        if name not in ("method", "sparsity")
        and any(row[name] != rows[0][name] for row in rows)
        and any(name not in variant for variant in told)
    ]


def _settings(experiment: Experiment) -> dict[str, Any]:
    settings = experiment.model_dump(exclude={"seed", *MACHINE_FIELDS})
    return {**settings, "sparsity": weight_sparsity(experiment)}


def _summarize(outcomes: Sequence[Run | Failure], variant: str) -> Row:
    experiment = outcomes[0].experiment
    seeds: dict[int, Path] = {}
    for outcome in outcomes:
        seed = outcome.experiment.seed
        if seed in seeds:
            raise UserError(f"{seeds[seed]} and {outcome.path} are the same experiment; leave one out")
        seeds[seed] = outcome.path

    runs = [outcome for outcome in outcomes if isinstance(outcome, Run)]
    results = [run.summary for run in runs]
    drops = [record.drop for run in runs for record in run.rounds if record.drop is not None]
    traffic = [(result.bytes_down + result.bytes_up) / result.rounds for result in results]
    accuracies = [result.test_accuracy for result in results]
    return Row(
        method=experiment.method,
        sparsity=weight_sparsity(experiment),
        seeds=tuple(run.experiment.seed for run in runs),
        failed_seeds=tuple(failed.experiment.seed for failed in outcomes if isinstance(failed, Failure)),
        accuracy=mean(accuracies),
        accuracy_std=stdev(accuracies) if len(accuracies) > 1 else None,
        best_accuracy=mean([result.best_test_accuracy for result in results]),
        adjustment_drop=mean(drops),
        bytes_per_round=mean(traffic),
        seconds=mean([result.seconds for result in results]),
        parameters=results[0].parameters if results else None,
        parameters_if_dense=results[0].parameters_if_dense if results else None,
        variant=variant,
        warning=_warning(runs, mean(accuracies)),
    )


def mean(values: Sequence[float]) -> float | None:
    """None when there are none: no run was finished, or none adjusted its masks."""
    return fmean(values) if values else None


def _warning(runs: Sequence[Run], accuracy: float | None) -> str:
    if any(record.train_loss is None for run in runs for record in run.rounds):
        return "its training loss was not finite"
    if stopped := [run for run in runs if run.summary.stopped]:
        run = stopped[0]
        return f"stopped after {run.summary.rounds} of {run.experiment.rounds} rounds: {run.summary.stopped}"
    if problems := [run.summary.problem for run in runs if run.summary.problem]:
        return problems[0]
    if accuracy is None or accuracy * runs[0].summary.classes > AT_CHANCE:
        return ""
    return f"at chance level, as if it guessed one of {runs[0].summary.classes} classes"


def _check_same(one: Run | Failure, other: Run | Failure, fields: Sequence[str]) -> None:
    for field in fields:
        first, second = getattr(one.experiment, field), getattr(other.experiment, field)
        if first != second:
            raise UserError(
                f"{one.path} and {other.path} cannot be compared: "
                f"{field} = {first} in the one, {second} in the other; name only those that agree"
            )
