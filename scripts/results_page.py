"""Write the tables of docs/results.md from the runs in results/, so that page and runs cannot differ.

    python scripts/results_page.py

A table stands between `<!-- table: STUDY SCALE -->` and `<!-- end -->`; the rest is written by hand.
"""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

from fedmef.runs.directory import SUMMARY, Run
from fedmef.studies import find_study
from fedmef.studies.adoption import find_finished, published_directory
from fedmef.studies.paper.base import Case, case_of
from fedmef.studies.paper.frontier import DeviceCost
from fedmef.studies.paper.scales import Scale, find_scale

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results.md"
SEEDS = 3
BLOCK = re.compile(r"(<!-- table: (\w+) (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
NOTHING = "–"

Table = Callable[[Scale], list[list[str]]]


def page(text: str) -> str:
    """The page with its tables made anew."""

    def made(found: re.Match[str]) -> str:
        begin, name, of_scale, end = found.groups()
        scale = find_scale(of_scale)
        rows = SPECIAL[name](scale) if name in SPECIAL else study_table(name, scale)
        return f"{begin}{markdown(rows)}{end}"

    return BLOCK.sub(made, text)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A heading and its rows as a table."""
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def study_runs(name: str, scale: Scale) -> list[tuple[Case, list[Run]]]:
    """Every case of a study that was run, with its runs in the order of their seeds."""
    study = find_study(name)
    found = find_finished(study.experiments(scale, SEEDS), [ROOT / published_directory(study, scale)])
    cases = [(case, _of_case(case, found)) for case in study.cases(scale)]
    return [(case, runs) for case, runs in cases if runs]


def _of_case(case: Case, found: Mapping[str, Run | None]) -> list[Run]:
    return [run for name, run in found.items() if run and case_of(name) == case.name]


def frontier_runs(scale: Scale) -> list[tuple[Case, list[Run]]]:
    """Those of the frontier, with the seeds that every case has: partitions differ more than methods do."""
    cases = study_runs("frontier", scale)
    common = set.intersection(*({run.experiment.seed for run in runs} for _, runs in cases))
    return [(case, [run for run in runs if run.experiment.seed in common]) for case, runs in cases]


def study_table(name: str, scale: Scale) -> list[list[str]]:
    """A row for each case: what it is, its mean accuracy, and that of each seed."""
    cases = study_runs(name, scale)
    labels = list(find_study(name).cases(scale)[0].labels)
    rows = [
        [*(code(case.labels[label]) for label in labels), spread(runs), each(runs)] for case, runs in cases
    ]
    return [[*labels, "accuracy %", "seeds 0, 1, 2"], *rows]


# Columns of the main table: study, sparsity, heading.
COLUMNS = (
    ("table1", 0.0, "CIFAR-10, dense"),
    ("table1", 0.8, "CIFAR-10, 80 %"),
    ("table1", 0.9, "CIFAR-10, 90 %"),
    ("table1", 0.95, "CIFAR-10, 95 %"),
    ("cifar100", 0.9, "CIFAR-100, 90 %"),
)


def main_table(scale: Scale) -> list[list[str]]:
    """Table 1 and CIFAR-100: a row for each method, a column for each sparsity."""
    cells = {
        (study, runs[0].experiment.sparsity, runs[0].experiment.method): spread(runs)
        for study in ("table1", "cifar100")
        for _, runs in study_runs(study, scale)
    }
    columns = [column for column in COLUMNS if any(cell[:2] == column[:2] for cell in cells)]
    methods = dict.fromkeys(method for *_, method in cells)
    rows = [
        [code(method), *(cells.get((study, sparsity, method), NOTHING) for study, sparsity, _ in columns)]
        for method in methods
    ]
    return [["method", *(heading for *_, heading in columns)], *rows]


def frontier_table(scale: Scale) -> list[list[str]]:
    """Accuracy next to what a device was measured to need."""
    rows = []
    for case, runs in frontier_runs(scale):
        cost, labels = DeviceCost.of(runs[0]), [code(label) for label in case.labels.values()]
        measured = [f"{cost.process / 1e6:.1f}", f"{cost.milliseconds:.2f}", cost.backend]
        rows.append([*labels, spread(runs), *measured])
    return [["method", "width", "batch", "accuracy %", "process, MB", "CPU, ms per image", "backend"], *rows]


SPECIAL: Mapping[str, Table] = {"main": main_table, "frontier": frontier_table}


def code(label: str | float | None) -> str:
    """A method's name is code."""
    return f"`{label}`" if isinstance(label, str) else str(label)


def spread(runs: Sequence[Run]) -> str:
    """Mean test accuracy in %, with the sample standard deviation; a single seed is named."""
    values = accuracies(runs)
    if len(values) == 1:
        return f"{values[0]:.1f} (seed {runs[0].experiment.seed})"
    return f"{fmean(values):.1f} ± {stdev(values):.1f}"


def each(runs: Sequence[Run]) -> str:
    """Every seed's accuracy; a dash for one that was not run."""
    by_seed = {run.experiment.seed: f"{100 * run.summary.test_accuracy:.1f}" for run in runs}
    return ", ".join(by_seed.get(seed, NOTHING) for seed in range(SEEDS))


def accuracies(runs: Sequence[Run]) -> list[float]:
    """Of the last round, in %."""
    return [100 * run.summary.test_accuracy for run in runs]


def published() -> list[Path]:
    """Every run that is published for a scale."""
    return sorted(file.parent for file in (ROOT / "results").glob(f"*/*/*/{SUMMARY}"))


def main() -> None:
    """Make the page's tables."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    PAGE.write_text(page(PAGE.read_text()))


if __name__ == "__main__":
    main()
