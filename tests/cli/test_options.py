"""Every setting of an experiment is an option."""

import pytest

from fedmef.cli.options import FLAGS
from fedmef.experiment.settings import Experiment
from tests.cli.invoking import Invoke


@pytest.mark.parametrize("command", ["run", "compare", "cost", "plan"])
def test_the_help_names_every_setting(command: str, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    printed = invoke(command, "--help").printed
    flags = (FLAGS.get(name, f"--{name.replace('_', '-')}") for name in Experiment.model_fields)
    assert [flag for flag in flags if f"{flag} " not in printed] == []


def test_an_option_says_what_it_takes_and_its_default(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    lines = {line.split()[0]: line for line in invoke("run", "--help").printed.splitlines() if "--" in line}
    assert lines["--rounds"].split()[1] == "N"
    assert lines["--rounds"].endswith("(default 40).")
    assert lines["--alpha"].split()[1] == "X"
    assert lines["--partition"].split()[1] == "dirichlet|iid|natural"
    assert lines["--device-memory"].split()[1] == "SIZE"
    assert lines["--skip"].split()[1] == "NAMES"
    assert lines["--data-dir"].split()[1] == "DIR"
    assert lines["--augment"].split()[1:3] == ["/", "--no-augment"]
