"""Which backend executes a network, and what people are told of it."""

import importlib
from collections.abc import Callable
from typing import Any

import pytest

from fedmef.device import choice
from fedmef.device.choice import (
    Choice,
    choose_backend,
    choose_for,
    missing_kernels,
    native_threads,
    why_only_torch,
)
from fedmef.errors import UserError
from fedmef.experiment.settings import Experiment
from tests.sparsity.networks import dense_network, sparse_network

SPARSE, DENSE = sparse_network(), dense_network()

Have = Callable[..., None]


@pytest.fixture
def have(monkeypatch: pytest.MonkeyPatch) -> Have:
    """`have(torch=False)`: a machine on which some things are missing."""

    def set_up(*, torch: bool = True, kernels: bool = True, unsupported: str | None = None) -> None:
        monkeypatch.setattr(choice, "missing_kernels", lambda: "" if kernels else "there are no kernels")
        monkeypatch.setattr(choice, "load_part", lambda module, name: lambda network: unsupported)
        monkeypatch.setattr(choice, "find_spec", lambda package: object() if torch else None)

    return set_up


def test_auto_is_native_for_a_sparse_network_and_torch_for_a_dense_one(have: Have) -> None:
    have()
    assert choose_backend(SPARSE) == Choice("native")
    assert choose_backend(DENSE) == Choice("torch", "its weights are dense, where PyTorch is faster")
    assert choose_backend(SPARSE, dense=True).name == "torch"


@pytest.mark.parametrize(
    ("machine", "options", "reason"),
    [
        ({"kernels": False}, {}, "there are no kernels"),
        ({"unsupported": "it cannot do 'mine'"}, {}, "it cannot do 'mine'"),
        ({}, {"accelerator": "cuda:1"}, "it has no accelerator = 'cuda:1'"),
        ({}, {"needs_torch": "the method needs torch"}, "the method needs torch"),
    ],
)
def test_auto_is_torch_where_native_cannot_and_native_itself_is_refused(
    machine: dict[str, Any], options: dict[str, Any], reason: str, have: Have
) -> None:
    have(**machine)
    assert choose_backend(SPARSE, **options) == Choice("torch", reason)
    with pytest.raises(UserError, match=f"backend = 'native': {reason}; use torch or auto"):
        choose_backend(SPARSE, "native", **options)


def test_what_is_asked_for_is_taken(have: Have) -> None:
    have()
    assert choose_backend(SPARSE, "torch") == Choice("torch")
    assert choose_backend(DENSE, "native") == Choice("native")


def test_where_there_is_no_torch_auto_is_native_or_an_error(have: Have) -> None:
    have(torch=False)
    assert choose_backend(DENSE) == Choice("native", "PyTorch is not installed")
    have(torch=False, kernels=False)
    with pytest.raises(UserError, match="PyTorch is not installed, and the other backend: there are no"):
        choose_backend(SPARSE)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "native"),
        ({"backend": "torch"}, "torch"),
        ({"sparsity": 0.0}, "torch"),
        ({"method": "fedavg"}, "torch"),
        ({"method": "fedavg_sap"}, "torch"),
        ({"method": "fedtiny"}, "native"),
        ({"method": "prunefl"}, "torch"),
        ({"accelerator": "cuda"}, "torch"),
        ({"method": "gone:Method"}, "native"),  # its model can still be evaluated
    ],
)
def test_an_experiment_decides_for_all_its_devices(
    settings: dict[str, Any], expected: str, have: Have
) -> None:
    have()
    assert choose_for(Experiment(**settings), SPARSE).name == expected


@pytest.mark.parametrize(
    ("machine", "settings", "reason"),
    [
        ({}, {}, ""),
        ({}, {"method": "fedavg"}, ""),  # it has PyTorch because that is faster, and need not
        ({}, {"method": "prunefl"}, "the method needs torch"),
        ({}, {"method": "prunefl", "backend": "torch"}, ""),
        ({"unsupported": "it cannot do 'mine'"}, {}, "it cannot do 'mine'"),
        ({"unsupported": "it cannot do 'mine'"}, {"accelerator": "cuda"}, ""),
        ({"kernels": False}, {}, ""),
    ],
)
def test_what_keeps_an_experiment_from_the_kernels_is_said_in_words(
    machine: dict[str, Any], settings: dict[str, Any], reason: str, have: Have
) -> None:
    have(**machine)
    assert why_only_torch(Experiment(**settings), SPARSE) == reason


def test_kernels_that_were_not_built_are_told_apart_from_those_that_do_not_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choice, "KERNELS", "fedmef.native._no_such_kernels")
    assert missing_kernels().startswith("the native kernels are not built: install a C++20 compiler")

    def broken(name: str) -> None:
        raise ImportError("libstdc++.so.6: no such file")

    monkeypatch.setattr(choice, "import_module", broken)
    monkeypatch.setattr(choice, "find_spec", lambda name: object())
    assert "cannot be loaded (libstdc++.so.6: no such file)" in missing_kernels()


def test_kernels_that_load_are_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "import_module", lambda name: importlib)
    assert missing_kernels() == ""


def test_threads_are_one_or_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDMEF_THREADS", raising=False)
    assert native_threads() == 1
    monkeypatch.setenv("FEDMEF_THREADS", "4")
    assert native_threads() == 4


@pytest.mark.parametrize("text", ["0", "", "-1", "two", "1.5", "²", "99999"])
def test_a_number_of_threads_that_is_none_is_a_mistake(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDMEF_THREADS", text)
    with pytest.raises(UserError, match=f"FEDMEF_THREADS = '{text}': must be a number from 1 to 1024"):
        native_threads()
