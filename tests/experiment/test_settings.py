"""An experiment's settings: typed, validated, and what follows from them."""

import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from fedmef.errors import UserError
from fedmef.experiment.settings import MACHINE_FIELDS, Experiment, make_experiment
from fedmef.wire.job import Job


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sparsity", 1.0),
        ("sparsity", -0.1),
        ("activation_sparsity", 1),
        ("alpha", 0),
        ("alpha", "nan"),
        ("learning_rate", "inf"),
        ("devices", 0),
        ("engine", "warp"),
        ("backend", "jax"),
        ("rounds", "many"),
        ("seed", -1),
        ("seed", 2**53 + 1),
        ("device_memory", "much"),
        ("device_memory", 0),
        ("wire_scheme", "zip"),
        ("wire_dtype", "int8"),
        ("faults", "explode=1"),
    ],
)
def test_a_wrong_value_is_named_with_its_field(field: str, value: object) -> None:
    with pytest.raises(UserError, match=rf"^{field} = .*{value}"):
        make_experiment({field: value})


def test_by_default_all_devices_train_where_they_are_few() -> None:
    assert make_experiment({"devices": "4"}).devices_per_round == 4
    assert make_experiment({"devices": 11}).devices_per_round == 10


def test_more_devices_per_round_than_devices_are_refused() -> None:
    with pytest.raises(UserError, match="devices_per_round = 5: there are only 4 devices"):
        make_experiment({"devices": 4, "devices_per_round": 5})


def test_an_unknown_setting_suggests_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown setting 'sparcity': did you mean 'sparsity'"):
        make_experiment({"sparcity": 0.9})


def test_the_learning_rate_decays_in_steps() -> None:
    experiment = Experiment(learning_rate=1, learning_rate_decay=0.5, decay_every=10)
    assert [experiment.job(r, 7.0).learning_rate for r in (0, 9, 10, 29)] == [1, 1, 0.5, 0.25]


def test_the_learning_rate_follows_a_cosine_and_warms_up() -> None:
    experiment = Experiment(learning_rate=0.8, rounds=4, rate_schedule="cosine")
    rates = [experiment.job(number, 1.0).learning_rate for number in range(4)]
    assert rates == pytest.approx([0.8, 0.8 * (0.5 + 0.5 * math.sqrt(0.5)), 0.4, 0.8 * 0.1464466], rel=1e-6)
    warm = Experiment(learning_rate=0.8, warmup_rounds=3)
    assert [warm.job(number, 1.0).learning_rate for number in range(5)] == pytest.approx(
        [0.2, 0.4, 0.6, 0.8, 0.8]
    )


def test_an_experiment_without_a_learning_rate_has_its_methods() -> None:
    job = Experiment(learning_rate_decay=0.5, decay_every=1).job(1, 0.8)
    assert (job.initial_rate, job.learning_rate) == (0.8, 0.4)


def test_adjustments_stop_at_sixty_percent_of_the_rounds_by_default() -> None:
    assert Experiment(rounds=500).last_adjustment == 300
    assert Experiment(rounds=500, adjust_until=0).last_adjustment == 0


@pytest.mark.parametrize(
    ("given", "number"),
    [("96MB", 96_000_000), ("96 MB", 96_000_000), ("64MiB", 2**26), (5000, 5000), ("5000", 5000)],
)
def test_memory_is_given_with_its_unit(given: Any, number: int) -> None:
    memory = make_experiment({"device_memory": given}).device_memory
    assert memory == number


def test_names_of_modules_come_as_a_list_or_with_commas() -> None:
    experiment = make_experiment({"skip": "head, layer4.*", "keep_dense": "", "last_layers": ["fc"]})
    assert experiment.skip == ("head", "layer4.*")
    assert experiment.keep_dense == ()  # every layer is sparse
    assert experiment.first_layers is None
    assert experiment.last_layers == ("fc",)
    with pytest.raises(UserError, match=r"^skip = 3: "):
        make_experiment({"skip": 3})


def test_a_third_of_the_devices_must_answer_by_default() -> None:
    assert Experiment(devices_per_round=10).fewest_devices == 4
    assert Experiment(devices_per_round=10, min_devices=2).fewest_devices == 2
    assert Experiment(devices_per_round=10, noise_multiplier=1.0).fewest_devices == 0
    with pytest.raises(UserError, match="min_devices = 11: only 10 devices train in a round"):
        make_experiment({"min_devices": 11})


@pytest.mark.parametrize("name", ["max_norm_ratio", "max_samples_ratio"])
def test_the_median_of_a_round_is_never_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} = 0.5: must be 0, or at least 1"):
        make_experiment({name: 0.5})
    assert getattr(make_experiment({name: 0.0}), name) == 0
    assert getattr(make_experiment({name: 1.0}), name) == 1


def test_a_folder_of_data_is_the_same_wherever_a_run_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Experiment(data_dir=Path("data")).data_dir == tmp_path / "data"
    assert Experiment(data_dir=Path("~/data")).data_dir == Path.home() / "data"


def test_an_experiment_is_not_changed_by_accident() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Experiment().rounds = 3


def test_the_job_of_a_round_says_all_that_a_device_must_know() -> None:
    experiment = Experiment(
        method="fedtiny",
        seed=7,
        learning_rate=0.4,
        learning_rate_decay=0.5,
        decay_every=10,
        local_epochs=3,
        batch_size=16,
        left_over="drop",
        augment=True,
        extrusion=0.25,
        wire_scheme="rice",
        wire_dtype="bf16",
        remember_masks=False,
    )
    assert experiment.job(12, 9.0) == Job(
        method="fedtiny",
        round=12,
        seed=7,
        learning_rate=0.2,
        initial_rate=0.4,
        local_epochs=3,
        batch_size=16,
        left_over="drop",
        augment=True,
        extrusion=0.25,
        wire_scheme="rice",
        wire_dtype="bf16",
        remember_masks=False,
    )


def test_a_job_forgets_no_setting_that_it_has_a_field_for() -> None:
    """Whatever an experiment and a job call alike must be handed over, or a default is taken silently."""
    odd: dict[str, Any] = {
        "method": "feddst",
        "seed": 99,
        "learning_rate": 0.123,
        "local_epochs": 17,
        "batch_size": 13,
        "left_over": "keep",
        "augment": True,
        "extrusion": 0.77,
        "wire_scheme": "coo",
        "wire_dtype": "fp16",
        "remember_masks": False,
        "momentum": 0.5,
        "weight_decay": 0.25,
        "proximal": 0.125,
        "loss": "mine:loss",
    }
    common = {field.name for field in fields(Job)} & Experiment.model_fields.keys()
    assert common == odd.keys()
    job = make_experiment(odd).job(0, 9.0)
    assert {name: getattr(job, name) for name in odd} == odd


def test_where_it_runs_is_a_setting_of_an_experiment() -> None:
    assert Experiment.model_fields.keys() >= MACHINE_FIELDS
