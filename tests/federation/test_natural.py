"""Devices that are the data's own users: in Python, from a folder, in every engine, resumed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedmef
from fedmef.data import Dataset, SyntheticImages
from fedmef.errors import Interrupted, UserError
from fedmef.experiment.settings import Experiment, make_experiment
from fedmef.federation.api import evaluate_run
from fedmef.federation.simulated.fleet import following_users, partition
from fedmef.studies.many import Comparison, run_comparison
from tests.cli.invoking import Invoke, check_mistake, invoke
from tests.federation.small import TINY, digest, interrupted_after

NATURAL: dict[str, Any] = {name: value for name, value in TINY.items() if name != "devices"}
NATURAL |= {"partition": "natural", "rounds": 2}
__all__ = ["invoke"]
OWNERS = ["ann", "bob", "cleo", "dora"]


@pytest.fixture
def data() -> Dataset:
    """Four users with 10, 30, 50 and 70 images."""
    made = SyntheticImages(shape=(3, 8, 8), classes=10, train=160, test=40).make()
    users = np.random.default_rng(0).permutation(np.repeat(OWNERS, [10, 30, 50, 70]))
    return replace(made, name="mine", users=users)


def test_each_user_is_a_device(data: Dataset, tmp_path: Path) -> None:
    run = fedmef.run(Experiment(**NATURAL), tmp_path / "run", dataset=data)
    assert run.experiment.devices == 4
    assert 'partition = "natural"' in (run.path / "config.toml").read_text()
    shares = partition(run.experiment, data)
    assert [len(share) for share in shares] == [10, 30, 50, 70]
    assert data.users is not None
    assert [set(data.users[share].tolist()) for share in shares] == [{name} for name in OWNERS]


def test_every_engine_and_a_resumed_run_give_the_same_bits(data: Dataset, tmp_path: Path) -> None:
    whole = fedmef.run(Experiment(**NATURAL), tmp_path / "whole", dataset=data)
    for backend in ("torch", "native"):
        settings = {**NATURAL, "engine": "processes", "workers": 1, "backend": backend}
        other = fedmef.run(Experiment(**settings), tmp_path / backend, dataset=data)
        if other.summary.backend == whole.summary.backend:
            assert digest(other.path) == digest(whole.path)
    with pytest.raises(Interrupted):
        fedmef.run(Experiment(**NATURAL), tmp_path / "cut", dataset=data, callbacks=[interrupted_after(1)])
    assert digest(fedmef.resume(tmp_path / "cut", dataset=data).path) == digest(whole.path)


def test_a_folder_with_users_is_a_data_set_of_the_command_line(
    data: Dataset, tmp_path: Path, invoke: Invoke
) -> None:
    data.write(tmp_path / "mine")
    assert (tmp_path / "mine" / "train_users.npy").is_file()
    settings = tmp_path / "settings.toml"
    settings.write_text(
        'partition = "natural"\ndevices_per_round = 3\nrounds = 1\nlocal_epochs = 1\nwidth = 4\n'
    )
    arguments = (str(settings), "--dataset", str(tmp_path / "mine"), "--engine", "inline")
    code, _, errors = invoke("run", *arguments, "--out", str(tmp_path / "run"))
    assert code == 0, errors
    assert fedmef.Run.open(tmp_path / "run").experiment.devices == 4
    assert invoke("run", *arguments, "--resume", str(tmp_path / "run"), "--rounds", "2").code == 0
    check_mistake(invoke("run", "--dataset", str(tmp_path)), "(docs/data.md)")
    check_mistake(
        invoke("run", "--dataset", "digits", "--partition", "natural"), "does not say whose its images"
    )


def test_a_comparison_follows_the_users_too(data: Dataset, tmp_path: Path) -> None:
    data.write(tmp_path / "mine")
    base = make_experiment({**NATURAL, "dataset": str(tmp_path / "mine"), "rounds": 1})
    comparison = Comparison(base, ("fedavg", "fedmef"), seeds=(0,), sparsities=(0.5,))
    for _ in range(2):  # the second time all is finished
        runs = run_comparison(comparison, tmp_path / "out")
        assert [run.experiment.devices for run in runs] == [4, 4]


def test_by_default_all_users_train_where_they_are_few(data: Dataset) -> None:
    unsaid = {name: value for name, value in NATURAL.items() if name != "devices_per_round"}
    followed = following_users(Experiment(**unsaid), data)
    assert (followed.devices, followed.devices_per_round) == (4, 4)
    again = make_experiment(Experiment(**unsaid).settings())  # as a comparison makes its experiments
    assert following_users(again, data) == followed
    with pytest.raises(UserError, match="min_devices = 5: dataset 'mine' has only 4 users; lower it"):
        following_users(Experiment(**{**unsaid, "min_devices": 5}), data)


def test_another_number_of_devices_is_refused(data: Dataset) -> None:
    with pytest.raises(UserError, match=r"devices = 6: dataset 'mine' has 4 users.*leave devices out"):
        partition(Experiment(**{**NATURAL, "devices": 6}), data)
    assert following_users(Experiment(**{**NATURAL, "devices": 4}), data).devices == 4
    with pytest.raises(UserError, match="devices_per_round = 30: dataset 'mine' has only 4 users"):
        following_users(Experiment(**{**NATURAL, "devices_per_round": 30}), data)
    with pytest.raises(UserError, match=r"on a fleet each device has data of its own"):
        fedmef.run(Experiment(**NATURAL), dataset=data, elsewhere=True)


def test_a_run_of_an_opened_folder_is_resumed_and_evaluated_without_its_data(
    data: Dataset, tmp_path: Path
) -> None:
    data.write(tmp_path / "mine")
    opened = Dataset.open(tmp_path / "mine")
    with pytest.raises(Interrupted):
        fedmef.run(Experiment(**NATURAL), tmp_path / "run", dataset=opened, callbacks=[interrupted_after(1)])
    run = fedmef.resume(tmp_path / "run")
    assert run.experiment.dataset == (tmp_path / "mine").as_posix()
    assert evaluate_run(run).accuracy == run.summary.test_accuracy


def test_a_changed_folder_is_not_recorded_as_it_was(data: Dataset, tmp_path: Path) -> None:
    data.write(tmp_path / "mine")
    fewer = replace(Dataset.open(tmp_path / "mine"), test=data.train)
    run = fedmef.run(Experiment(**{**NATURAL, "rounds": 1}), tmp_path / "run", dataset=fewer)
    assert run.experiment.dataset == "mine"
