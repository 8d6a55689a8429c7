"""A study's rows, how its numbers are shown, and its caption."""

from pathlib import Path

import pytest

from fedmef.errors import UserError
from fedmef.studies import find_study
from fedmef.studies.many import Failure
from fedmef.studies.paper.base import Case, Number, Result, accuracies, caption, case_of
from tests.small import small, write_run


def test_a_number_says_how_it_is_shown_and_counts_like_any_other() -> None:
    assert [str(Number(value)) for value in (81.0, -0.001, 80.456)] == ["81.00", "0.00", "80.46"]
    assert str(Number(0.000123456, ".3g")) == "0.000123"
    assert str(Number(12_345, "bytes")) == "12.3 kB"
    assert Number.of(None) is None
    assert Number(1.5) + 1 == 2.5


def test_the_plainest_table_has_mean_deviation_and_failed_seeds(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / str(seed), small(seed=seed), [accuracy])
        for seed, accuracy in enumerate((0.5, 0.7))
    ]
    case = Case("one", {"method": "fedmef"}, {}, {"accuracy % (paper)": 78.1})
    (row,) = accuracies([Result(case, runs, failed=1)])
    assert row["method"] == "fedmef"
    assert row["accuracy % (ours)"] == pytest.approx(60.0)
    assert row["± (ours)"] == pytest.approx(200**0.5)  # √(10² + 10²)
    assert (row["finished seeds"], row["accuracy % (paper)"]) == ("2/3", 78.1)
    (row,) = accuracies([Result(case, runs[:1], failed=0)])
    assert (row["± (ours)"], row["finished seeds"]) == (None, None)


def test_a_failed_case_keeps_its_row_and_the_papers_numbers() -> None:
    study = find_study("table1")
    failures = {
        name: Failure(Path(name), experiment, "diverged")
        for name, experiment in study.experiments("smoke").items()
    }
    rows = study.rows("smoke", failures)
    assert len(rows) == 13
    assert rows[8]["accuracy % (paper)"] == 78.1
    assert (rows[8]["accuracy % (ours)"], rows[8]["finished seeds"]) == (None, "0/1")


def test_a_case_that_was_not_asked_for_has_no_row() -> None:
    rows = find_study("ablation").rows("smoke", {"fedmef-sparsity0.9-seed0": None})
    assert [row["method"] for row in rows] == ["fedmef"]


def test_seeds_are_counted_from_0_and_each_has_a_run() -> None:
    study = find_study("ablation")
    experiments = study.experiments("smoke", seeds=2)
    assert [experiment.seed for experiment in experiments.values()] == [0, 1] * 4
    assert {case_of(name) for name in experiments} == {case.name for case in study.cases("smoke")}
    for seeds in (0, 101):
        with pytest.raises(UserError, match=f"seeds = {seeds}"):
            study.experiments("smoke", seeds=seeds)


def test_the_caption_says_what_can_be_compared() -> None:
    study = find_study("local_epochs")
    desk = caption(study, "desk", study.experiments("desk", seeds=2))
    assert "desk scale: data cifar10, network resnet34 of width 8, rounds 40, devices 100, seeds 2" in desk
    assert "never the values" in desk
    paper = caption(study, "paper", study.experiments("paper"))
    assert "The paper's setting; where it is silent, ours: λ" in paper
    assert "with 1 of its 5 seeds" in caption(study, "paper", study.experiments("paper", seeds=1))
    smoke = caption(study, "smoke", study.experiments("smoke"))
    assert "accuracies and their order mean nothing" in smoke
    assert "compare the order" not in smoke


def test_the_caption_says_what_is_ours() -> None:
    ours, heterogeneity = find_study("post_pruning_drop"), find_study("heterogeneity")
    assert "The paper has no such table" in caption(ours, "desk", ours.experiments("desk"))
    assert "The paper has no such table" in caption(ours, "paper", ours.experiments("desk"))
    assert "values of α are ours" in caption(heterogeneity, "paper", heterogeneity.experiments("paper"))
