"""What holds for every study, without running it; and each of them run at smoke scale."""

import json
from pathlib import Path

import pytest

from fedmef.errors import UserError
from fedmef.experiment.files import to_toml
from fedmef.experiment.settings import MACHINE_FIELDS
from fedmef.federation import preparation
from fedmef.methods import METHODS, find_method
from fedmef.models import MODELS
from fedmef.studies import STUDIES, find_study
from fedmef.studies.many import Failure
from fedmef.studies.paper.base import Study, case_of
from fedmef.studies.paper.scales import SCALES, Scale
from tests.cli.invoking import Invoke

# Rows that each table has at smoke scale; a row for each case, unless the table says otherwise.
ROWS = {
    "table1": 13,
    "main_figure": 13,
    "adjustment_period": 9,
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
    "cifar100": 4,
    "mobilenet": 2,
    "frontier": 20,
}
# Minutes of a busy machine.
LONG = {
    "table1",
    "main_figure",
    "dense_comparison",
    "selected_clients",
    "local_epochs",
    "same_memory",
    "mobilenet",
    "frontier",
}
ALL = {name: find_study(name) for name in STUDIES}

every_study = pytest.mark.parametrize("study", ALL.values(), ids=ALL)
every_scale = pytest.mark.parametrize("scale", SCALES)


def test_every_study_is_in_the_table_under_its_own_name() -> None:
    assert {name: study.name for name, study in ALL.items()} == {name: name for name in STUDIES}
    assert STUDIES.keys() == ROWS.keys()
    assert len({study.title for study in ALL.values()}) == len(STUDIES)


def test_an_unknown_study_is_named() -> None:
    with pytest.raises(UserError, match="unknown study 'tabel1': did you mean 'table1'"):
        find_study("tabel1")


@every_scale
@every_study
def test_every_scale_of_every_study_is_valid(study: Study, scale: Scale) -> None:
    cases = study.cases(scale)
    experiments = study.experiments(scale)
    assert len(experiments) == len(cases) * {"bench": 3, "paper": 5}.get(scale, 1)  # names are unique
    assert {case_of(name) for name in experiments} == {case.name for case in cases}
    assert len({to_toml(experiment) for experiment in experiments.values()}) == len(experiments)
    for experiment in experiments.values():
        preparation.check_names(experiment)
        assert experiment.model in MODELS
        if experiment.method in METHODS and experiment.method not in ("fedavg", "fedavg_sap", "fl_pqsu"):
            method = find_method(experiment.method)()
            jobs = [method.job(experiment, number) for number in range(experiment.rounds)]
            # Three rounds of a smoke test have no room for the longest of its periods.
            too_long = (study.name, scale, experiment.adjust_every) == ("adjustment_period", "smoke", 3)
            assert any(job.adjusts for job in jobs) != too_long


@every_study
def test_no_experiment_belongs_to_two_scales(study: Study) -> None:
    texts = [{to_toml(e) for e in study.experiments(scale, seeds=1).values()} for scale in SCALES]
    assert len(set.union(*texts)) == sum(map(len, texts))


@every_study
def test_dense_methods_have_no_sparsity(study: Study) -> None:
    for experiment in study.experiments("paper", seeds=1).values():
        assert (experiment.sparsity == 0.0) == (experiment.method in ("fedavg", "fedavg_sap"))


@every_study
def test_the_machine_changes_no_experiment(study: Study) -> None:
    usual = study.experiments("smoke", seeds=1)
    moved = study.experiments("smoke", seeds=1, machine={"engine": "processes", "workers": 3})
    for name, experiment in moved.items():
        assert (experiment.engine, experiment.workers) == ("processes", 3)
        same = usual[name].model_dump(exclude=set(MACHINE_FIELDS))
        assert experiment.model_dump(exclude=set(MACHINE_FIELDS)) == same


@pytest.mark.parametrize("study", [s for s in ALL.values() if s.name != "activation_histogram"])
def test_every_table_can_be_made_when_all_runs_failed(study: Study) -> None:
    failures = {
        name: Failure(Path(name), experiment, "diverged")
        for name, experiment in study.experiments("smoke").items()
    }
    assert len(study.rows("smoke", failures)) >= len(study.cases("smoke"))


@pytest.mark.parametrize(
    "study",
    [pytest.param(study, marks=[pytest.mark.slow] if study.name in LONG else []) for study in ALL.values()],
    ids=lambda study: study.name,
)
def test_a_study_runs_at_smoke_scale(
    study: Study, tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedmef.studies.paper.frontier.PROCESSES", 1)
    arguments = ["reproduce", study.name, "--scale", "smoke", "--out", str(tmp_path / "runs"), "--json"]
    code, printed, told = invoke(*arguments)
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
