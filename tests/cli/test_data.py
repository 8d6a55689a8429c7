"""`fedmef data` as a user meets it."""

import json
from pathlib import Path

import pytest

from tests.cli.invoking import Invoke, check_mistake


def test_a_data_set_is_described(invoke: Invoke) -> None:
    code, printed, _ = invoke("data", "digits", "--json")
    facts = json.loads(printed)
    assert (code, facts["classes"], facts["train"] + facts["test"]) == (0, 10, 1797)
    assert (facts["shape"], facts["folder"]) == ([1, 8, 8], "built in")
    _, printed, _ = invoke("data", "digits")
    assert [line.split()[0] for line in printed.splitlines()] == list(facts)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["mnist"], "unknown dataset 'mnist'"),
        (["cifar10", "--no-download", "--data-dir", "empty"], "cifar10"),
    ],
)
def test_a_mistake_is_a_line_and_makes_no_folder(
    arguments: list[str], expected: str, tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_mistake(invoke("data", *arguments), expected)
    assert list(tmp_path.iterdir()) == []
