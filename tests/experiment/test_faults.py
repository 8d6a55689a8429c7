"""Injected faults as a setting: which devices fail when."""

from pathlib import Path

import pytest

from fedmef.errors import UserError
from fedmef.experiment.faults import KINDS, LIES, Faults, read_fault_plan
from fedmef.experiment.settings import make_experiment

MANY = "drop=0.3,slow=0.1,corrupt=0.05,kill=0.02"


def test_faults_are_read_from_text() -> None:
    faults = Faults.parse("drop=0.3, kill@3:7,slow=0.1")
    assert faults.shares == {"drop": 0.3, "slow": 0.1}
    assert faults.planned == {(3, 7): "kill"}
    assert faults.of(0, 3, 0, 7) == "kill"
    assert Faults.parse("") == Faults({}, {})


@pytest.mark.parametrize("text", ["drop", "drop=x", "explode=0.1", "drop=0.6,slow=0.6", "kill@3", "drop=-1"])
def test_what_is_no_fault_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="faults = "):
        make_experiment({"faults": text})


def test_faults_come_as_often_as_asked_and_always_in_the_same_place() -> None:
    faults = Faults.parse(MANY)
    drawn = [faults.of(1, number // 10, 0, number % 10) for number in range(4000)]
    assert drawn == [faults.of(1, number // 10, 0, number % 10) for number in range(4000)]
    shares = {kind: drawn.count(kind) / len(drawn) for kind in KINDS if kind not in LIES}
    assert shares == pytest.approx(Faults.parse(MANY).shares, abs=0.02)
    assert drawn != [faults.of(1, number // 10, 1, number % 10) for number in range(4000)]


def test_a_plan_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text('[[fault]]\nround = 3\ndevice = 7\nfault = "kill"\n')
    assert read_fault_plan(file) == "kill@3:7"
    for wrong in ("[[fault]]\nround = 3\n", "nonsense", '[[fault]]\nround=1\ndevice=2\nfault="x"', "fault=3"):
        file.write_text(wrong)
        with pytest.raises(UserError, match="--fault-plan"):
            read_fault_plan(file)
    with pytest.raises(UserError, match="No such file"):
        read_fault_plan(tmp_path / "nowhere")
