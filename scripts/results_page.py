"""Write the tables of docs/results.md from the runs in results/, so that page and runs cannot differ.

    python scripts/results_page.py

A table stands between `<!-- table: STUDY SCALE -->` and `<!-- end -->`; the rest is written by hand.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

from fedmef.runs.directory import SUMMARY, Run, read_finished
from fedmef.studies import find_study
from fedmef.studies.adoption import find_finished, published_directory
from fedmef.studies.paper.base import Case
from fedmef.studies.paper.scales import Scale, find_scale

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results.md"
SEEDS = 3
BLOCK = re.compile(r"(<!-- table: (\w+) (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

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
    return "".join(f"| {' | '.join(line)} |\n".replace("|  |", "| |") for line in lines)


def study_runs(name: str, scale: Scale) -> list[tuple[Case, list[Run]]]:
    """Every case of a study that was run, with its runs in the order of their seeds."""
    study = find_study(name)
    experiments = study.experiments(scale, SEEDS)
    found = find_finished(experiments, [ROOT / published_directory(study, scale)])
    cases = [(case, _of_case(case, found)) for case in study.cases(scale)]
    return [(case, runs) for case, runs in cases if runs]


def _of_case(case: Case, found: Mapping[str, Run | None]) -> list[Run]:
    return [run for name, run in found.items() if run and name.rpartition("-seed")[0] == case.name]


def study_table(name: str, scale: Scale) -> list[list[str]]:
    """A row for each case: what it is, its mean accuracy, and that of each seed."""
    cases = study_runs(name, scale)
    labels = list(cases[0][0].labels)
    return [
        [*labels, "accuracy %", "seeds 0, 1, 2"],
        *(
            [*(code(case.labels[label]) for label in labels), spread(runs), each(runs)]
            for case, runs in cases
        ),
    ]


def main_table(scale: Scale) -> list[list[str]]:
    """Table 1 and CIFAR-100: a row for each method, a column for each sparsity."""
    cells: dict[tuple[str, str], str] = {}
    for case, runs in study_runs("table1", scale):
        sparsity = case.labels["sparsity"]
        cells[str(case.labels["method"]), "dense" if not sparsity else f"{sparsity:.0%}"] = spread(runs)
    for case, runs in study_runs("cifar100", scale):
        cells[str(case.labels["method"]), "CIFAR-100"] = spread(runs)
    columns = [
        column for column in ("dense", "80%", "90%", "95%", "CIFAR-100") if any(c == column for _, c in cells)
    ]
    heads = [{"CIFAR-100": "CIFAR-100, 90 %"}.get(c, f"CIFAR-10, {c.replace('%', ' %')}") for c in columns]
    methods = dict.fromkeys(method for method, _ in cells)
    rows = [[f"`{method}`", *(cells.get((method, c), "") for c in columns)] for method in methods]
    return [["method", *heads], *rows]


def frontier_table(scale: Scale) -> list[list[str]]:
    """Accuracy next to the measured process, which lies in a file next to the runs."""
    costs = json.loads((ROOT / "results" / scale / "frontier.json").read_text())
    rows = []
    for case, runs in study_runs("frontier", scale):
        cost = costs[case.name]
        labels = [code(label) for label in case.labels.values()]
        rows.append([*labels, spread(runs), f"{cost['process'] / 1e6:.1f}", f"{cost['seconds']:.2f}"])
    return [["method", "width", "batch", "accuracy %", "process, MB", "CPU, s a round"], *rows]


def code(label: str | float | None) -> str:
    """A method's name is code."""
    return f"`{label}`" if isinstance(label, str) else str(label)


def spread(runs: Sequence[Run]) -> str:
    """Mean test accuracy in %, with the sample standard deviation where there are several seeds."""
    values = accuracies(runs)
    return f"{fmean(values):.1f} ± {stdev(values):.1f}" if len(values) > 1 else f"{values[0]:.1f}"


def each(runs: Sequence[Run]) -> str:
    """Every seed's accuracy; a dash for one that was not run."""
    by_seed = dict(zip((run.experiment.seed for run in runs), accuracies(runs), strict=True))
    return ", ".join(f"{by_seed[seed]:.1f}" if seed in by_seed else "–" for seed in range(max(by_seed) + 1))


def accuracies(runs: Sequence[Run]) -> list[float]:
    """Of the last round, in %."""
    return [100 * run.summary.test_accuracy for run in runs]


SPECIAL: Mapping[str, Table] = {"main": main_table, "frontier": frontier_table}


def published() -> list[Path]:
    """Every run that is published for a scale."""
    return sorted(file.parent for file in (ROOT / "results").glob(f"*/*/*/{SUMMARY}"))


def main() -> None:
    """Make the page's tables."""
    for run in published():
        read_finished(run)
    PAGE.write_text(page(PAGE.read_text()))


if __name__ == "__main__":
    main()
