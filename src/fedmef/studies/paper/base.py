"""What a study is: cases to run, and a table of what they gave next to what the paper has."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import stdev
from typing import Any

from fedmef.costs.units import human_bytes
from fedmef.errors import UserError
from fedmef.experiment.settings import Experiment, make_experiment
from fedmef.runs.directory import Run
from fedmef.studies.many import Failure
from fedmef.studies.paper.scales import SEEDS, Scale
from fedmef.studies.rows import mean

MOST_SEEDS = 100

Cell = str | int | float | None  # a plain float is shown with the digits that it is written with
Row = dict[str, Cell]  # by heading; every heading says whose number it is


class Number(float):
    """A number of ours that says how it is shown: by a format such as ".2f", or as "bytes"."""

    form: str

    def __new__(cls, value: float, form: str = "z.2f") -> "Number":
        """With two digits after the point, unless told otherwise."""
        number = super().__new__(cls, value)
        number.form = form
        return number

    @classmethod
    def of(cls, value: float | None, form: str = "z.2f") -> "Number | None":
        """The same of a number that may be missing."""
        return None if value is None else cls(value, form)

    def __str__(self) -> str:
        return human_bytes(self) if self.form == "bytes" else format(float(self), self.form)


@dataclass(frozen=True)
class Case:
    """One setting of a study, run once for each seed.

    Attributes:
        name: begins the names of its run directories.
        labels: the row's first cells, which say what this case is.
        settings: of its experiment, but for the seed.
        paper: what the paper has in this row, by heading.
    """

    name: str
    labels: Row
    settings: Mapping[str, Any]
    paper: Row = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """A case with its finished runs; `failed` more did not come to their end, or were never begun."""

    case: Case
    runs: Sequence[Run]
    failed: int


Tabulate = Callable[[Sequence[Result]], list[Row]]


def accuracy_cells(result: Result) -> Row:
    """Mean final test accuracy over the seeds, its sample standard deviation, and failed seeds if any."""
    accuracies = [100 * run.summary.test_accuracy for run in result.runs]
    asked = len(result.runs) + result.failed
    return {
        "accuracy % (ours)": Number.of(mean(accuracies)),
        "± (ours)": Number(stdev(accuracies)) if len(accuracies) > 1 else None,
        "finished seeds": f"{len(result.runs)}/{asked}" if result.failed else None,
    }


def accuracies(results: Sequence[Result]) -> list[Row]:
    """The plainest table: a row for each case with our accuracy and the paper's."""
    return [{**result.case.labels, **accuracy_cells(result), **result.case.paper} for result in results]


@dataclass(frozen=True)
class Study:
    """A table or figure of the paper, or one of ours.

    Attributes:
        name: what `fedmef reproduce` calls it.
        source: where it stands in the paper.
        title: in a few words.
        shows: what to look for in the table.
        cases: what is run at a scale.
        tabulate: the table of what the runs gave.
        remark: what of it is not the paper's, or does not compare; "" for nothing.
    """

    name: str
    source: str
    title: str
    shows: str
    cases: Callable[[Scale], list[Case]]
    tabulate: Tabulate = accuracies
    remark: str = ""

    def experiments(
        self, scale: Scale, seeds: int | None = None, machine: Mapping[str, Any] | None = None
    ) -> dict[str, Experiment]:
        """What is run, by the names of the directories; `machine` says where and how, and changes no bit."""
        count = SEEDS[scale] if seeds is None else seeds
        if not 1 <= count <= MOST_SEEDS:
            raise UserError(f"seeds = {count}: give 1 to {MOST_SEEDS}")
        return {
            f"{case.name}-seed{seed}": make_experiment({**case.settings, "seed": seed, **(machine or {})})
            for case in self.cases(scale)
            for seed in range(count)
        }

    def rows(self, scale: Scale, outcomes: Mapping[str, Run | Failure | None]) -> list[Row]:
        """The table of these runs, by the names of `experiments`; None is one that nobody has run.

        A case without a finished run has a row without our numbers, one that is not named here has none.
        """
        asked = {case_of(name) for name in outcomes}
        return self.tabulate([_result(case, outcomes) for case in self.cases(scale) if case.name in asked])


def case_of(directory: str) -> str:
    """`fedmef-sparsity0.9-seed3` → `fedmef-sparsity0.9`."""
    return directory.rpartition("-seed")[0]


def _result(case: Case, outcomes: Mapping[str, Run | Failure | None]) -> Result:
    own = [outcome for name, outcome in outcomes.items() if case_of(name) == case.name]
    runs = [outcome for outcome in own if isinstance(outcome, Run)]
    return Result(case, runs, failed=len(own) - len(runs))


def caption(study: Study, scale: Scale, experiments: Mapping[str, Experiment]) -> str:
    """What the table is, and what its numbers can be compared with."""
    all_of_them = list(experiments.values())
    settings = [
        _all_values("data", [experiment.dataset for experiment in all_of_them]),
        _all_values("network", [_network(experiment) for experiment in all_of_them]),
        _all_values("rounds", [experiment.rounds for experiment in all_of_them]),
        _all_values("devices", [experiment.devices for experiment in all_of_them]),
        f"seeds {len({experiment.seed for experiment in all_of_them})}",
    ]
    seeds = len({experiment.seed for experiment in all_of_them})
    about = f"{study.title} ({study.source}), {scale} scale: {', '.join(settings)}."
    return " ".join(filter(None, [about, _comparable(study, scale, seeds), study.remark]))


def _comparable(study: Study, scale: Scale, seeds: int) -> str:
    if scale == "smoke":
        return "It only shows that the path works: accuracies and their order mean nothing."
    if study.source == "ours":
        return "The paper has no such table."
    if scale in ("desk", "bench"):
        return "Not the paper's setting: compare the order of rows with the paper's, never the values."
    few = f" with {seeds} of its {SEEDS['paper']} seeds" if seeds < SEEDS["paper"] else ""
    silent = "λ, the devices of a round, and how often the learning rate decays"
    return f"The paper's setting{few}; where it is silent, ours: {silent}."


def _all_values(name: str, values: Sequence[str | int]) -> str:
    return f"{name} {'/'.join(str(value) for value in dict.fromkeys(values))}"


def _network(experiment: Experiment) -> str:
    return experiment.model if experiment.width is None else f"{experiment.model} of width {experiment.width}"
