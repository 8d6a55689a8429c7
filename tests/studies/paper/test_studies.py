"""What holds for every study, without running it; and each of them run at smoke scale."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from fedmef.errors import UserError
from fedmef.experiment.settings import MACHINE_FIELDS, read_experiment
from fedmef.federation import preparation
from fedmef.methods import METHODS
from fedmef.models import MODELS
from fedmef.studies import SCALES, STUDIES, Scale, Study, find_scale, find_study
from fedmef.studies.many import Failure
from fedmef.studies.paper.base import Row, case_of
from fedmef.studies.reproduction import caption, check_directory, default_directory, study_table
from tests.cli.test_app import invoke

# Rows that each table has at smoke scale; a row for each case, unless the table says otherwise.
ROWS = {
    "table1": 13,
    "main_figure": 13,
    "adjustment_period": 6,
    "convergence": 5,
    "heterogeneity": 9,
    "batch_size_one": 5,
    "ablation": 4,
    "local_epochs": 12,
    "selected_clients": 16,
    "lambda": 5,
    "dense_comparison": 6,
    "activation_histogram": 20,  # convolutions of ResNet18
    "post_pruning_drop": 9,  # three methods: two adjustments each, and both together
    "marked_magnitude": 6,
    "same_memory": 6,
}

every_study = pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
every_scale = pytest.mark.parametrize("scale", SCALES)


def test_every_study_is_in_the_table_under_its_own_name() -> None:
    assert {name: study.name for name, study in STUDIES.items()} == {name: name for name in STUDIES}
    assert STUDIES.keys() == ROWS.keys()
    assert len({study.title for study in STUDIES.values()}) == len(STUDIES)


@every_scale
@every_study
def test_every_scale_of_every_study_is_valid(study: Study, scale: Scale) -> None:
    cases = study.cases(scale)
    experiments = study.experiments(scale)
    assert len(experiments) == len(cases) * (5 if scale == "paper" else 1)  # names are unique
    assert {case_of(name) for name in experiments} == {case.name for case in cases}
    assert len({experiment.to_toml() for experiment in experiments.values()}) == len(experiments)
    for experiment in experiments.values():
        preparation.check_names(experiment)
        assert experiment.model in MODELS
        if experiment.method in METHODS and experiment.method not in ("fedavg", "fedavg_sap", "fl_pqsu"):
            plans = [
                METHODS[experiment.method](experiment).plan(number) for number in range(experiment.rounds)
            ]
            # Three rounds of a smoke test have no room for the longest of its periods.
            too_long = (study.name, scale, experiment.adjust_every) == ("adjustment_period", "smoke", 3)
            assert any(plan.adjusts for plan in plans) != too_long


@every_study
def test_no_experiment_belongs_to_two_scales(study: Study) -> None:
    texts = [{e.to_toml() for e in study.experiments(scale, seeds=1).values()} for scale in SCALES]
    assert len(set.union(*texts)) == sum(map(len, texts))


def test_the_paper_scale_is_the_papers_configuration() -> None:
    ours = STUDIES["table1"].experiments("paper")["fedmef-sparsity0.9-seed0"]
    published = read_experiment(Path(__file__).parents[3] / "configs" / "paper.toml")
    assert ours.model_dump(exclude=set(MACHINE_FIELDS)) == published.model_dump(exclude=set(MACHINE_FIELDS))


def test_the_paper_scale_of_the_main_figure_has_every_panel() -> None:
    experiments = STUDIES["main_figure"].experiments("paper", seeds=1).values()
    panels = {(e.dataset, e.model) for e in experiments}
    assert len(panels) == 3 * 2
    assert len(experiments) == 6 * (1 + 3 * 4)


def test_batchnorm_and_nsconv_have_their_own_rates_at_desk_scale() -> None:
    rates = {e.method: e.learning_rate for e in STUDIES["table1"].experiments("desk").values()}
    assert rates == {"fedavg": 0.3, "fl_pqsu": 0.3, "feddst": 0.3, "fedtiny": 0.3, "fedmef": 1.0}
    rates = {e.method: e.learning_rate for e in STUDIES["ablation"].experiments("desk").values()}
    assert rates == {"fedmef": 1.0, "fedmef_no_bae": 1.0, "fedmef_restart": 1.0, "fedmef_no_sap": 0.3}


def test_a_failed_case_keeps_its_row_and_the_papers_numbers() -> None:
    study = STUDIES["table1"]
    failures = {
        name: Failure(Path(name), experiment, "diverged")
        for name, experiment in study.experiments("smoke").items()
    }
    rows = study.rows("smoke", failures)
    assert len(rows) == 13
    assert rows[8]["accuracy % (paper)"] == 78.1
    assert (rows[8]["accuracy % (ours)"], rows[8]["finished seeds"]) == (None, "0/1")


@pytest.mark.parametrize("study", [s for s in STUDIES.values() if s.name != "activation_histogram"])
def test_every_table_can_be_made_when_all_runs_failed(study: Study) -> None:
    failures = {
        name: Failure(Path(name), experiment, "diverged")
        for name, experiment in study.experiments("smoke").items()
    }
    assert len(study.rows("smoke", failures)) >= len(study.cases("smoke"))


def test_the_caption_says_what_can_be_compared() -> None:
    study = STUDIES["local_epochs"]
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
    for scale in ("desk", "paper"):
        ours = STUDIES["post_pruning_drop"]
        assert "The paper has no such table" in caption(ours, find_scale(scale), ours.experiments("desk"))
    heterogeneity = STUDIES["heterogeneity"]
    assert "values of α are ours" in caption(heterogeneity, "paper", heterogeneity.experiments("paper"))


def test_the_main_figure_has_the_numbers_of_the_papers_tables() -> None:
    desk = {case.name: case.paper for case in STUDIES["main_figure"].cases("desk")}
    accuracy, memory = "accuracy % (paper)", "memory MB (paper, estimated)"
    assert desk["cifar10-resnet18-fedmef-sparsity0.9"] == {accuracy: 78.1, memory: None}
    assert desk["cifar10-resnet18-fedmef-sparsity0.8"] == {accuracy: 81.7, memory: 45.91}
    assert desk["cifar10-resnet18-fedavg-sparsity0.0"] == {accuracy: 81.2, memory: 120.74}
    assert desk["cifar10-resnet18-fl_pqsu-sparsity0.9"] == {accuracy: None, memory: None}
    paper = {case.name: case.paper for case in STUDIES["main_figure"].cases("paper")}
    assert paper["cifar10-mobilenet_v2-fedmef-sparsity0.8"] == {accuracy: 65.50, memory: 84.94}
    assert paper["cinic10-resnet18-fedmef-sparsity0.8"] == {}


def test_the_papers_numbers_are_shown_as_printed() -> None:
    rows: list[Row] = [
        {"accuracy % (ours)": 81.0, "accuracy % (paper)": 81.2, "memory MB (paper, estimated)": 84.94},
        {"accuracy % (ours)": 80.5, "accuracy % (paper)": 72.0, "memory MB (paper, estimated)": 101.2},
    ]
    shown = [list(column.cells) for column in study_table(rows).columns]
    assert shown == [["81.00", "80.50"], ["81.2", "72.0"], ["84.94", "101.20"]]


def test_a_narrow_table_breaks_no_word_but_leaves_columns_out() -> None:
    rows: list[Row] = [
        {"method": "fedmef_no_bae", "accuracy % (ours)": 81.0, "exchange bytes (ours, measured)": 12_345}
    ]
    numbers = set()
    for width in range(16, 80):
        table = study_table(rows, width)
        screen = io.StringIO()
        Console(file=screen, width=width, color_system=None).print(table)
        words = screen.getvalue().split()
        numbers.add(len(table.columns))
        for column in table.columns:
            assert {*str(column.header).split(), *" ".join(map(str, column.cells)).split()} <= {*words}
        assert ("left" in words) == (len(table.columns) < 3)
    assert numbers == {1, 2, 3}


def test_unknown_names_are_named() -> None:
    with pytest.raises(UserError, match="unknown study 'tabel1': did you mean 'table1'"):
        find_study("tabel1")
    with pytest.raises(UserError, match="unknown scale 'dusk': did you mean 'desk'"):
        find_scale("dusk")
    with pytest.raises(UserError, match="seeds = 0"):
        STUDIES["table1"].experiments("smoke", seeds=0)


def test_a_directory_of_another_study_or_scale_is_refused(tmp_path: Path) -> None:
    (tmp_path / "fedmef-period10-seed0").mkdir()
    (tmp_path / "fedmef-period10-seed0" / "config.toml").write_text("")
    check_directory(STUDIES["adjustment_period"], "paper", tmp_path)
    with pytest.raises(UserError, match="no part of adjustment_period at smoke scale"):
        check_directory(STUDIES["adjustment_period"], "smoke", tmp_path)
    with pytest.raises(UserError, match="no part of table1"):
        check_directory(STUDIES["table1"], "paper", tmp_path)
    places = {default_directory(study, scale) for study in STUDIES.values() for scale in SCALES}
    assert len(places) == len(STUDIES) * len(SCALES)


@every_study
def test_a_study_runs_at_smoke_scale(
    study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["reproduce", study.name, "--scale", "smoke", "--out", str(tmp_path / "runs"), "--json"]
    code, printed, told = invoke(arguments, capsys, monkeypatch)
    assert code == 0
    answer = json.loads(printed)
    assert (answer["scale"], answer["failures"], len(answer["rows"])) == ("smoke", [], ROWS[study.name])
    assert answer["claim"] == study.shows
    labels = {"convolution", "round", *(name for case in study.cases("smoke") for name in case.labels)}
    for row in answer["rows"]:
        ours = {name: row[name] for name in row if name not in labels and "(paper" not in name}
        missing = {name for name, value in ours.items() if value is None}
        assert missing <= {"± (ours)", "finished seeds"}
        assert 0 <= ours.get("accuracy % (ours)", 0) <= 100
    tables_without = ("activation_histogram", "post_pruning_drop")
    assert ("accuracy % (ours)" in answer["rows"][0]) == (study.name not in tables_without)
    assert f"{len(study.cases('smoke'))} runs" in told
