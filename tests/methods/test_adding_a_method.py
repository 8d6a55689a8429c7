"""The guide's method, exactly as the guide has it."""

import re
from pathlib import Path

import pytest

import fedmef
from fedmef.experiment.settings import Experiment

GUIDE = Path(__file__).parents[2] / "docs" / "adding-a-method.md"


def code() -> str:
    (block,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    return str(block)


def test_the_guides_method_has_fewer_than_sixty_lines() -> None:
    assert len(code().splitlines()) < 60


@pytest.mark.parametrize("engine", ["inline", "processes"])
def test_the_guides_method_runs_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    module = f"guide_{engine}"
    (tmp_path / f"{module}.py").write_text(code())
    monkeypatch.chdir(tmp_path)
    experiment = Experiment.model_validate(
        {
            "method": f"{module}:RandomGrowth",
            "engine": engine,
            "workers": 2,
            "width": 8,
            "devices": 4,
            "devices_per_round": 3,
            "rounds": 4,
            "adjust_every": 1,
            "learning_rate": 0.2,
        }
    )
    run = fedmef.run(experiment, tmp_path / "run")
    assert run.summary.adjustments == 1
    first, *_, last = run.rounds
    assert first.train_loss is not None
    assert last.train_loss is not None
    assert last.train_loss < first.train_loss
    if engine == "inline":
        whole = fedmef.run(experiment.model_copy(update={"sparsity": 0.0}), tmp_path / "whole")
        assert whole.summary.adjustments == 0
