"""The runs in results/ are those of `fedmef reproduce --scale desk`; a page has their numbers."""

from pathlib import Path
from statistics import mean, stdev

import pytest

from fedmef.experiment.files import changed_fields, read_experiment
from fedmef.experiment.settings import MACHINE_FIELDS
from fedmef.runs.directory import CONFIG, read_finished
from fedmef.studies import STUDIES, find_study
from fedmef.studies.paper.base import case_of

ROOT = Path(__file__).parents[2]
PUBLISHED = sorted(file.parent for name in STUDIES for file in (ROOT / "results" / name).glob(f"*/{CONFIG}"))


@pytest.mark.parametrize("run", PUBLISHED, ids=lambda run: f"{run.parent.name}/{run.name}")
def test_a_published_run_is_whole_and_the_studys_own(run: Path) -> None:
    asked = find_study(run.parent.name).experiments("desk", seeds=3)[run.name]
    since = {"extrusion", "gamma", "learning_rate", "learning_rate_decay"}  # tuned again for version 0.2
    assert changed_fields(read_experiment(run / CONFIG), asked, MACHINE_FIELDS | since) == []
    read_finished(run)


def test_the_page_has_the_published_accuracies() -> None:
    rows = [
        line
        for line in (ROOT / "docs" / "notes" / "results-0.1.md").read_text().splitlines()
        if line.startswith("|")
    ]
    cases = {(run.parent.name, case_of(run.name)) for run in PUBLISHED}
    for study, case in sorted(cases):
        runs = [run for run in PUBLISHED if (run.parent.name, case_of(run.name)) == (study, case)]
        accuracies = [100 * read_finished(run).summary.test_accuracy for run in runs]
        spread = f" ± {stdev(accuracies):.1f}" if len(runs) > 1 else ""
        method = read_experiment(runs[0] / CONFIG).method
        cell = f"| {mean(accuracies):.1f}{spread} |"
        assert any(f"`{method}`" in row and cell in row for row in rows), (study, case, cell)
