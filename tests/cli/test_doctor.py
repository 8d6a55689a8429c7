"""`fedmef doctor` as a user meets it, with and without what may be missing."""

import json
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest

from fedmef.cli import doctor
from tests.cli.invoking import Invoke

NAMES = [
    "backend",
    "reason",
    "native_kernels",
    "instruction_set",
    "instruction_sets",
    "threads",
    "processor",
    "cores",
    "memory",
    "python",
    "fedmef",
    "numpy",
    "torch",
    "flwr",
]


def a_machine(
    monkeypatch: pytest.MonkeyPatch, *, kernels: bool = True, packages: tuple[str, ...] = ("torch", "flwr")
) -> None:
    def load(module: str, name: str) -> Any:
        return (lambda: ["avx2", "baseline"]) if name == "available" else "FEDMEF_INSTRUCTIONS"

    def find_version(package: str) -> str:
        if package in ("torch", "flwr") and package not in packages:
            raise PackageNotFoundError(package)
        return version(package) if package in ("fedmef", "numpy") else "9.9"

    monkeypatch.setattr(doctor, "missing_kernels", lambda: "" if kernels else "there are no kernels")
    monkeypatch.setattr(doctor, "load_part", load)
    monkeypatch.setattr(doctor, "version", find_version)
    for variable in ("FEDMEF_INSTRUCTIONS", "FEDMEF_THREADS"):
        monkeypatch.delenv(variable, raising=False)


def test_it_answers_on_this_machine_in_lines_and_in_json(invoke: Invoke) -> None:
    code, printed, _ = invoke("doctor")
    assert code == 0
    assert [line.split("  ")[0] for line in printed.splitlines()] == [
        name.replace("_", " ") for name in NAMES
    ]
    code, printed, _ = invoke("doctor", "--json")
    facts = json.loads(printed)
    assert (code, list(facts)) == (0, NAMES)
    assert facts["fedmef"] == version("fedmef")
    assert facts["cores"] >= 1
    assert facts["memory"] > 2**20


def test_with_the_kernels_it_says_which_instruction_set_and_how_many_threads(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_machine(monkeypatch)
    monkeypatch.setenv("FEDMEF_THREADS", "2")
    facts = json.loads(invoke("doctor", "--json").printed)
    assert (facts["backend"], facts["native_kernels"], facts["threads"]) == ("native", "built", 2)
    assert (facts["instruction_set"], facts["instruction_sets"]) == ("avx2", ["avx2", "baseline"])
    assert facts["torch"] == "9.9"
    assert "avx2, baseline" in invoke("doctor").printed


def test_without_the_kernels_it_says_what_is_missing(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    a_machine(monkeypatch, kernels=False)
    code, printed, _ = invoke("doctor", "--json")
    facts = json.loads(printed)
    assert (code, facts["backend"], facts["reason"]) == (0, "torch", "there are no kernels")
    assert (facts["native_kernels"], facts["instruction_sets"]) == ("there are no kernels", [])


def test_without_pytorch_and_flower_it_says_so(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    a_machine(monkeypatch, packages=())
    facts = json.loads(invoke("doctor", "--json").printed)
    assert (facts["backend"], facts["torch"], facts["flwr"]) == ("native", "not installed", "not installed")
    assert "PyTorch is not installed" in facts["reason"]


def test_where_nothing_can_train_it_still_answers(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    a_machine(monkeypatch, kernels=False, packages=())
    code, printed, _ = invoke("doctor", "--json")
    facts = json.loads(printed)
    assert (code, facts["backend"]) == (0, None)
    assert facts["reason"] == "PyTorch is not installed, and there are no kernels"


@pytest.mark.parametrize(
    ("asked", "expected"),
    [("baseline", "baseline"), ("sse", "none: FEDMEF_INSTRUCTIONS = 'sse' is not there")],
)
def test_an_instruction_set_that_is_asked_for(
    asked: str, expected: str, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_machine(monkeypatch)
    monkeypatch.setenv("FEDMEF_INSTRUCTIONS", asked)
    facts = json.loads(invoke("doctor", "--json").printed)
    assert facts["instruction_set"] == expected
    assert facts["backend"] == ("native" if expected == asked else None)  # a run would be refused


def test_a_wrong_number_of_threads_is_a_finding(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    a_machine(monkeypatch)
    monkeypatch.setenv("FEDMEF_THREADS", "abc")
    code, printed, _ = invoke("doctor", "--json")
    assert code == 0
    assert json.loads(printed)["threads"].startswith("none: FEDMEF_THREADS = 'abc'")
