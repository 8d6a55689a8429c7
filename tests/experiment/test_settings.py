from pathlib import Path

import pytest

from fedmef.errors import UserError
from fedmef.experiment.settings import Experiment, make_experiment, read_experiment


def test_an_experiment_survives_the_way_through_its_file(tmp_path: Path) -> None:
    experiment = Experiment(
        sparsity=0.8, augment=True, adjust_until=3, data_dir=Path('/a "quoted" \\ folder')
    )
    file = tmp_path / "config.toml"
    file.write_text(experiment.to_toml())
    assert read_experiment(file) == experiment


def test_overrides_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("sparsity = 0.8\nrounds = 7\n")
    experiment = read_experiment(file, {"sparsity": "0.5"})
    assert (experiment.sparsity, experiment.rounds) == (0.5, 7)


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
        ("rounds", "many"),
    ],
)
def test_a_wrong_value_is_named_with_its_field(field: str, value: object) -> None:
    with pytest.raises(UserError, match=rf"^{field} = .*{value}"):
        make_experiment({field: value})


def test_more_devices_per_round_than_devices_are_refused() -> None:
    with pytest.raises(UserError, match="devices_per_round = 5: there are only 4 devices"):
        make_experiment({"devices": 4, "devices_per_round": 5})


def test_an_unknown_setting_suggests_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown setting 'sparcity': did you mean 'sparsity'"):
        make_experiment({"sparcity": 0.9})


@pytest.mark.parametrize("content", [b"sparsity = ", b"\xff\xfe", None])
def test_an_unreadable_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "config.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError, match=r"config\.toml"):
        read_experiment(file)


def test_the_learning_rate_decays_in_steps() -> None:
    experiment = Experiment(learning_rate=1, learning_rate_decay=0.5, decay_every=10)
    assert [experiment.learning_rate_at(r) for r in (0, 9, 10, 29)] == [1, 1, 0.5, 0.25]


def test_adjustments_stop_at_sixty_percent_of_the_rounds_by_default() -> None:
    assert Experiment(rounds=500).last_adjustment == 300
    assert Experiment(rounds=500, adjust_until=0).last_adjustment == 0
