"""The runs in results/ are those of `fedmef reproduce`, and the page of results has their numbers."""

from pathlib import Path

import pytest

from fedmef.experiment.files import changed_fields, read_experiment
from fedmef.experiment.settings import MACHINE_FIELDS
from fedmef.runs.directory import CONFIG, read_finished
from fedmef.studies import find_study
from fedmef.studies.paper.scales import find_scale
from scripts.results_page import PAGE, ROOT, page, published

RUNS = published()


def of(run: Path) -> str:
    return str(run.relative_to(ROOT / "results"))


@pytest.mark.parametrize("run", RUNS, ids=of)
def test_a_published_run_is_whole_and_the_studys_own(run: Path) -> None:
    study, scale = find_study(run.parent.name), find_scale(run.parents[1].name)
    asked = study.experiments(scale, seeds=3)[run.name]
    assert changed_fields(read_experiment(run / CONFIG), asked, MACHINE_FIELDS | {"backend"}) == []
    read_finished(run)


def test_the_pages_tables_are_those_of_the_published_runs() -> None:
    text = PAGE.read_text()
    assert page(text) == text, "python scripts/results_page.py writes the tables anew"


def test_every_published_study_has_a_table_on_the_page() -> None:
    text = PAGE.read_text()
    studies = {(run.parent.name, run.parents[1].name) for run in RUNS}
    inside = {"table1": "main", "cifar100": "main"}
    missing = {
        (name, scale)
        for name, scale in studies
        if f"<!-- table: {inside.get(name, name)} {scale} -->" not in text
    }
    assert missing == set()
