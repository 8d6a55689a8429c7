"""A comparison: several methods on the same data and partition, a run for each seed, a row for all seeds."""

import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from fedmef.costs.units import counted
from fedmef.data import Dataset
from fedmef.errors import FedmefError, Interrupted, UserError
from fedmef.experiment.files import RESUMABLE_FIELDS, changed_fields
from fedmef.experiment.settings import Experiment, make_experiment
from fedmef.federation import api, preparation
from fedmef.federation.simulated.fleet import following_users, partition
from fedmef.methods import find_method
from fedmef.runs.callbacks import AnyCallback
from fedmef.runs.checkpoints import has_checkpoint
from fedmef.runs.directory import CONFIG, SUMMARY, Run, read_finished
from fedmef.runs.lock import locked
from fedmef.runs.place import check_place
from fedmef.runs.signals import stop_on_signals

DEFAULT_METHODS = ("fedavg", "fl_pqsu", "feddst", "fedtiny", "fedmef")

DataSource = tuple[str | int, ...]


@dataclass(frozen=True)
class Comparison:
    """What is compared: every method at every sparsity with every seed.

    Attributes:
        base: all other settings. A seed decides the partition, so methods with the same seed share it.
        methods: names, or module:Class of your own.
        seeds: each gives a run; their spread is the table's ±.
        sparsities: dense methods ignore them and run once.
        rates: learning rates of single methods; others have the base's, or their own.
    """

    base: Experiment
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    sparsities: tuple[float, ...]
    rates: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if unknown := self.rates.keys() - set(self.methods):
            raise UserError(
                f"learning rates: '{min(unknown)}' is not one of the methods compared, "
                + ", ".join(self.methods)
            )
        named: dict[str, tuple[str | int | float, ...]] = {
            "methods": self.methods,
            "seeds": self.seeds,
            "sparsities": self.sparsities,
        }
        for name, values in named.items():
            if not values:
                raise UserError(f"{name}: name at least one")
            if twice := [value for value in values if values.count(value) > 1]:
                raise UserError(f"{name}: {twice[0]} is there twice; leave one out")

    def experiments(self) -> list[Experiment]:
        """One for each run, in the order of the table; an unknown method is a `UserError`."""
        base = self.base.settings()
        return [
            make_experiment(
                {
                    **base,
                    "method": method,
                    "sparsity": sparsity,
                    "seed": seed,
                    "learning_rate": self.rates.get(method, base["learning_rate"]),
                }
            )
            for method in self.methods
            for sparsity in (self.sparsities if find_method(method).recipe.has_sparsity else (0.0,))
            for seed in self.seeds
        ]

    def named_experiments(self) -> dict[str, Experiment]:
        """The experiments by the names of their directories."""
        return {run_name(experiment): experiment for experiment in self.experiments()}


def run_name(experiment: Experiment) -> str:
    """`fedmef-sparsity0.9-seed0`, or `fedavg-seed0`."""
    sparse = find_method(experiment.method).recipe.has_sparsity
    sparsity = f"-sparsity{experiment.sparsity}" if sparse else ""
    return f"{experiment.method}{sparsity}-seed{experiment.seed}".replace(":", "-")


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """A run that will be started, resumed or, if it is finished already, reused.

    Attributes:
        found: the run of the same experiment that is there already, if there is one.
        dataset: the data, open; None for a finished run, which needs none.
        overwrite: replace what is there.
        rounds_before: how many were done before, which a resumed run need not do again.
    """

    path: Path
    experiment: Experiment
    found: Run | None
    dataset: Dataset | None
    overwrite: bool
    rounds_before: int

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do."""
        return self.found is not None and _is_done(self.found, self.experiment)


@dataclass(frozen=True)
class Failure:
    """A run that did not come to its end, and why; the error itself is for --debug."""

    path: Path
    experiment: Experiment
    reason: str
    error: Exception | None = None


class RunsFailedError(FedmefError):
    """Some runs of a comparison failed; `outcomes` has all of them, the finished ones too."""

    def __init__(self, outcomes: Sequence[Run | Failure]) -> None:
        self.outcomes = list(outcomes)
        failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
        first = f"{failures[0].path.name}: {failures[0].reason}"
        super().__init__(f"{len(failures)} of {counted(len(outcomes), 'run')} failed, first {first}")


def run_comparison(
    comparison: Comparison, out: Path, *, overwrite: bool = False, callbacks: Sequence[AnyCallback] = ()
) -> list[Run]:
    """Run what is not finished yet, each in its own directory under `out`, and return all runs.

    A run that fails does not stop the others; `RunsFailedError` at the end has every outcome.
    """
    outcomes = carry_out(plan_runs(comparison.named_experiments(), out, overwrite=overwrite), callbacks)
    runs = [outcome for outcome in outcomes if isinstance(outcome, Run)]
    if len(runs) < len(outcomes):
        raise RunsFailedError(outcomes)
    return runs


def plan_runs(
    experiments: Mapping[str, Experiment], out: Path, *, overwrite: bool = False
) -> list[PlannedRun]:
    """What each directory under `out` needs; whatever is wrong with any of them shows here."""
    if (out / CONFIG).is_file():
        raise UserError(f"{out} is a run itself; choose another --out for the comparison")
    datasets: dict[DataSource, Dataset] = {}
    experiments = {name: _with_devices(experiment, datasets) for name, experiment in experiments.items()}
    found = {
        name: _existing_run(out / name, experiment, overwrite) for name, experiment in experiments.items()
    }
    pending = [
        experiment
        for name, experiment in experiments.items()
        if (run := found[name]) is None or not _is_done(run, experiment)
    ]
    if pending:
        check_place(out)
    for experiment in pending:
        preparation.check_new(experiment)  # all names before the first data set, which may be a download
    for experiment in pending:
        data = _opened(experiment, datasets)
        preparation.prepare(experiment, data)
        partition(experiment, data)  # the data may be too few for its devices
    return [
        PlannedRun(
            out / name,
            experiment,
            found[name],
            datasets.get(_data_source(experiment)),
            overwrite,
            _rounds_before(found[name]),
        )
        for name, experiment in experiments.items()
    ]


def _opened(experiment: Experiment, datasets: dict[DataSource, Dataset]) -> Dataset:
    source = _data_source(experiment)
    if source not in datasets:
        datasets[source] = preparation.open_dataset(experiment)
    return datasets[source]


def _with_devices(experiment: Experiment, datasets: dict[DataSource, Dataset]) -> Experiment:
    """An experiment whose devices are the data's users can only be compared when these are known."""
    if not experiment.devices_follow_users:
        return experiment
    return following_users(experiment, _opened(experiment, datasets))


def _rounds_before(run: Run | None) -> int:
    if run is None:
        return 0
    try:
        return len(run.finished_rounds())
    except UserError:
        return 0  # damaged: this run will fail, and the others continue


def carry_out(plan: Sequence[PlannedRun], callbacks: Sequence[AnyCallback] = ()) -> list[Run | Failure]:
    """Do what is left to do, one run after the other; nobody else may do the same in the same folder."""
    outcomes: list[Run | Failure] = []
    with ExitStack() as folders, stop_on_signals() as stop:
        for folder in sorted({planned.path.parent for planned in plan if not planned.finished}):
            folders.enter_context(locked(folder, make=True))
        for planned in plan:
            try:
                stop.check("between two runs")
                outcomes.append(_carry_out_one(planned, callbacks))
            except FedmefError as error:
                outcomes.append(Failure(planned.path, planned.experiment, str(error), error))
            except Exception as error:  # a user's own method may raise anything; the other runs continue
                reason = f"{type(error).__name__}: {error}"
                outcomes.append(Failure(planned.path, planned.experiment, reason, error))
            except KeyboardInterrupt as error:
                but = " without --overwrite" if planned.overwrite else ""
                raise Interrupted(
                    f"stopped in {planned.path} with {sum(isinstance(done, Run) for done in outcomes)} of "
                    f"{counted(len(plan), 'run')} finished; the same command{but} continues it",
                    error.signal_number if isinstance(error, Interrupted) else signal.SIGINT,
                ) from None
    return outcomes


def _carry_out_one(planned: PlannedRun, callbacks: Sequence[AnyCallback]) -> Run:
    if planned.found is not None and planned.finished:
        return planned.found
    if planned.found is not None:
        changes = planned.experiment.model_dump(include=set(RESUMABLE_FIELDS))
        # Its experiment is the one that was asked for, its code included.
        return api.resume(
            planned.path, changes, dataset=planned.dataset, callbacks=callbacks, allow_code=True
        )
    return api.run(
        planned.experiment,
        planned.path,
        dataset=planned.dataset,
        overwrite=planned.overwrite,
        callbacks=callbacks,
    )


def _is_done(run: Run, experiment: Experiment) -> bool:
    return run.complete and run.experiment.rounds == experiment.rounds


def _existing_run(path: Path, experiment: Experiment, overwrite: bool) -> Run | None:
    if overwrite or not ((path / SUMMARY).is_file() or has_checkpoint(path)):
        Run.check_free(path, overwrite=overwrite)
        return None
    run = Run.open(path)
    # A longer run of the same schedule continues a shorter one; a schedule that follows from the number
    # of rounds would be another.
    longer = experiment.adjust_until is not None and experiment.rounds >= run.experiment.rounds
    allowed = RESUMABLE_FIELDS if longer else RESUMABLE_FIELDS - {"rounds"}
    different = changed_fields(run.experiment, experiment, allowed)
    if different:
        raise UserError(
            f"{path} holds another experiment ({'; '.join(different)}); "
            "choose another --out, or --overwrite it"
        )
    if run.finished:
        read_finished(path)  # damage shows now and not after hours of training
    return run


def _data_source(experiment: Experiment) -> DataSource:
    """Experiments with the same source share one open data set; only synthetic data depend on the seed."""
    if experiment.dataset != "synthetic":
        return (experiment.dataset,)
    sizes = experiment.synthetic_size, experiment.synthetic_train, experiment.synthetic_test
    return (experiment.dataset, experiment.seed, *sizes)
