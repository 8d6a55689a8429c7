"""The preferred setting that fits. A formula stands for the measurement: what counts is the search."""

from typing import Any

import pytest

from benchmarks.device_limit import run_within, with_setting
from fedmef.costs import device_process, limit, plan
from fedmef.costs.device_process import ProcessCost
from fedmef.costs.plan import Candidate, plan_memory
from fedmef.errors import FedmefError, SparsityError, UserError
from fedmef.experiment.settings import Experiment, make_experiment
from tests.costs.formula import SHAPE, formula

PLANNED = ("sparsity", "activation_sparsity", "cache_dtype", "batch_size")


def chosen(megabytes: float, *fixed: str, **settings: object) -> Candidate:
    experiment = make_experiment({"device_memory": f"{megabytes}MB", **settings})
    return next(candidate for candidate in plan_memory(experiment, SHAPE, 10, fixed) if candidate.fits)


def every_setting(batch: int) -> list[Candidate]:
    """All of them, in the order of preference."""
    return [
        Candidate(s_m, s_a, dtype, size, None, False)
        for s_m in plan.PREFERENCES["sparsity"]
        for s_a in plan.PREFERENCES["activation_sparsity"]
        for dtype in plan.PREFERENCES["cache_dtype"]
        for size in (batch, batch // 2, batch // 4, batch // 8)
    ]


def settings_of(candidate: Candidate) -> dict[str, Any]:
    return {name: getattr(candidate, name) for name in PLANNED}


@pytest.mark.parametrize("megabytes", [14, 16, 20, 25, 32, 40, 60, 200])
def test_a_plan_is_the_most_preferred_of_all_that_fit(megabytes: int, measured: list[Experiment]) -> None:
    def needs(candidate: Candidate) -> int:
        return formula(make_experiment(settings_of(candidate)), SHAPE, 10).process

    room = (1 - limit.MARGIN) * megabytes * 1e6
    best = next(candidate for candidate in every_setting(64) if needs(candidate) <= room)
    found = chosen(megabytes, batch_size=64)
    assert settings_of(found) == settings_of(best)
    assert (found.needed, found.backend) == (needs(best), "native")
    assert len(measured) <= 10  # of 160


@pytest.mark.usefixtures("measured")
def test_a_fixed_setting_stays() -> None:
    found = chosen(25, "sparsity", "cache_dtype", batch_size=64, sparsity=0.95)
    assert (found.sparsity, found.cache_dtype) == (0.95, "fp32")


@pytest.mark.usefixtures("measured")
def test_a_plan_that_cannot_be_says_what_the_lightest_setting_needs() -> None:
    with pytest.raises(UserError, match="even the lightest setting needs 11"):
        chosen(5, batch_size=64)
    with pytest.raises(UserError, match="--device-memory 96MB"):
        plan_memory(Experiment(), SHAPE, 10)


def test_a_process_that_dies_of_too_much_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(experiment: Experiment, shape: object, classes: int) -> ProcessCost:
        if experiment.batch_size > 16:
            raise FedmefError("killed")
        return formula(experiment, shape, classes)

    monkeypatch.setattr(device_process, "_once", dies)
    assert chosen(200, batch_size=64).batch_size == 16


@pytest.mark.usefixtures("measured")
def test_a_setting_that_means_nothing_to_the_method_stays() -> None:
    found = chosen(16, batch_size=64, method="fl_pqsu")
    assert (found.activation_sparsity, found.cache_dtype) == (0.9, "fp32")
    found = chosen(40, batch_size=64, method="fedavg_sap", sparsity=0.0)
    assert found.sparsity == 0.0


def test_when_the_lightest_cannot_be_measured_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(experiment: Experiment, shape: object, classes: int) -> ProcessCost:
        raise FedmefError("the process of a device ended with -9: killed")

    monkeypatch.setattr(device_process, "_once", dies)
    with pytest.raises(UserError, match=r"even the lightest setting cannot be measured: .* killed"):
        chosen(96)


def test_a_person_is_told_what_is_measured(measured: list[Experiment]) -> None:
    told: list[str] = []
    plan_memory(make_experiment({"device_memory": "16MB", "batch_size": 64}), SHAPE, 10, tell=told.append)
    assert (
        told[0] == "measuring sparsity = 0.98, activation_sparsity = 0.95, cache_dtype = fp16, batch_size = 8"
    )
    assert len(told) == len(measured)


@pytest.fixture
def starved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above a sparsity of 0.9, nothing can be built."""

    def measure(experiment: Experiment, shape: object, classes: int) -> ProcessCost:
        if experiment.sparsity > 0.9:
            raise SparsityError(f"sparsity = {experiment.sparsity}: leaves no weight in 'conv'; lower it")
        return formula(experiment, shape, classes)

    monkeypatch.setattr(device_process, "_once", measure)


@pytest.mark.usefixtures("starved")
def test_a_plan_leaves_out_what_cannot_be_built() -> None:
    tried = plan_memory(make_experiment({"device_memory": "15MB", "batch_size": 64}), SHAPE, 10)
    best = next(candidate for candidate in tried if candidate.fits)
    assert (best.sparsity, best.needed) == (0.9, formula(Experiment(**settings_of(best)), SHAPE, 10).process)
    assert [(one.sparsity, one.needed) for one in tried if one.problem] == [(0.95, None), (0.98, None)]
    # 10 + 20 · 0.1 + 8 · (0.1 + 0.05 / 2)
    with pytest.raises(UserError, match=r"even the lightest setting needs 13\.0 MB"):
        chosen(5, batch_size=64)


@pytest.mark.usefixtures("starved")
def test_when_nothing_can_be_built_the_reason_is_said() -> None:
    with pytest.raises(UserError, match=r"leaves no weight in 'conv'.*--distribution erk"):
        chosen(96, "sparsity", sparsity=0.95)
    with pytest.raises(UserError, match=r"leaves no weight in 'conv'; lower it$"):
        chosen(96, "sparsity", sparsity=0.95, distribution="erk")


@pytest.mark.slow
def test_a_plan_holds_where_its_limit_is_enforced() -> None:
    experiment = make_experiment({"device_memory": "48MB", "batch_size": 64, "width": 16})
    candidate = next(found for found in plan_memory(experiment, SHAPE, 10) if found.fits)
    assert candidate.needed is not None
    ended = run_within(48_000_000, with_setting(experiment, candidate), SHAPE, 10)
    assert ended.within(48_000_000)
    assert ended.resident == pytest.approx(candidate.needed, abs=2_000_000)  # and it was no lucky guess
