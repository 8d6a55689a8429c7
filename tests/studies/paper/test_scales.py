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


@pytest.mark.parametrize(
    ("scale", "rates", "ablation"),
    [
        ("desk", {"fedavg": 0.3, "fl_pqsu": 0.45, "feddst": 0.3, "fedtiny": 0.3, "fedmef": 1.0}, (1.0, 0.3)),
        ("bench", {"fedavg": 0.3, "fl_pqsu": 0.6, "feddst": 0.3, "fedtiny": 0.3, "fedmef": 1.0}, (1.0, 0.3)),
    ],
)
def test_every_method_has_the_rate_that_it_was_tuned_for(
    scale: Scale, rates: dict[str, float], ablation: tuple[float, float]
) -> None:
    table = find_study("table1").experiments(scale).values()
    assert {e.method: e.learning_rate for e in table} == rates
    found = {e.method: e.learning_rate for e in find_study("ablation").experiments(scale).values()}
    nsconv = dict.fromkeys(("fedmef", "fedmef_no_bae", "fedmef_restart"), ablation[0])
    assert found == {**nsconv, "fedmef_no_sap": ablation[1]}


def test_bench_scale_has_one_schedule_for_all_methods() -> None:
    schedules = {
        (e.rate_schedule, e.augment, e.rounds, e.width)
        for e in find_study("table1").experiments("bench").values()
    }
    assert schedules == {("cosine", True, 100, 32)}


def test_batches_of_one_train_at_bench_scale_as_at_desk_scale() -> None:
    for experiment in find_study("batch_size_one").experiments("bench").values():
        assert (experiment.width, experiment.augment, experiment.rate_schedule) == (32, False, "decay")
        assert experiment.weight_decay == 0


def test_a_studys_own_settings_win_and_dense_methods_have_no_sparsity() -> None:
    assert settings("paper", "fedmef", rounds=7)["rounds"] == 7
    assert settings("paper", "fedmef", sparsity=0.8)["sparsity"] == 0.8
    assert settings("paper", "fedavg_sap", sparsity=0.8)["sparsity"] == 0.0
    assert settings("smoke", "fedmef", model="resnet18")["dataset"] == "synthetic"


def test_an_unknown_scale_is_named() -> None:
    assert [find_scale(name) for name in SCALES] == [*SCALES]
    with pytest.raises(UserError, match="unknown scale 'dusk': did you mean 'desk'"):
        find_scale("dusk")
