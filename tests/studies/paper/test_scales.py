"""The four scales: a smoke test of seconds, a desk's minutes, a bench's hours, the paper's setting."""

from pathlib import Path

import pytest

from fedmef.errors import UserError
from fedmef.experiment.files import read_experiment
from fedmef.experiment.settings import MACHINE_FIELDS
from fedmef.studies import find_study
from fedmef.studies.paper.scales import SCALES, Scale, find_scale, settings

ROOT = Path(__file__).parents[3]


def test_the_paper_scale_is_the_papers_configuration() -> None:
    ours = find_study("table1").experiments("paper")["fedmef-sparsity0.9-seed0"]
    published = read_experiment(ROOT / "configs" / "paper.toml")
    assert ours.model_dump(exclude=set(MACHINE_FIELDS)) == published.model_dump(exclude=set(MACHINE_FIELDS))


@pytest.mark.parametrize("scale", ["desk", "bench"])
def test_every_method_has_the_rate_that_it_was_tuned_for(scale: Scale) -> None:
    rates = {e.method: e.learning_rate for e in find_study("table1").experiments(scale).values()}
    assert rates == {"fedavg": 0.3, "fl_pqsu": 0.45, "feddst": 0.3, "fedtiny": 0.3, "fedmef": 1.0}
    rates = {e.method: e.learning_rate for e in find_study("ablation").experiments(scale).values()}
    assert rates == {"fedmef": 1.0, "fedmef_no_bae": 1.0, "fedmef_restart": 1.0, "fedmef_no_sap": 0.3}


def test_bench_scale_has_one_schedule_for_all_methods() -> None:
    schedules = {
        (e.learning_rate_decay, e.rounds, e.width) for e in find_study("table1").experiments("bench").values()
    }
    assert schedules == {(0.985, 100, 32)}


def test_a_studys_own_settings_win_and_dense_methods_have_no_sparsity() -> None:
    assert settings("paper", "fedmef", rounds=7)["rounds"] == 7
    assert settings("paper", "fedmef", sparsity=0.8)["sparsity"] == 0.8
    assert settings("paper", "fedavg_sap", sparsity=0.8)["sparsity"] == 0.0
    assert settings("smoke", "fedmef", model="resnet18")["dataset"] == "synthetic"


def test_an_unknown_scale_is_named() -> None:
    assert [find_scale(name) for name in SCALES] == [*SCALES]
    with pytest.raises(UserError, match="unknown scale 'dusk': did you mean 'desk'"):
        find_scale("dusk")
