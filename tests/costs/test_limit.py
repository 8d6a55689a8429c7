"""Which knob brings a device in. A formula stands for the measurement: what counts is the search."""

from pathlib import Path
from typing import Any

import pytest

import fedmef
from fedmef.costs import limit, measure_device_memory, plan
from fedmef.costs.limit import check_device_memory
from fedmef.costs.plan import Candidate, plan_memory
from fedmef.errors import FedmefError, UserError
from fedmef.experiment.settings import Experiment, make_experiment

SHAPE = (3, 32, 32)


def formula(experiment: Experiment, shape: object, classes: int) -> int:
    """10 MB, 20 MB times the density, and a MB a sample times what is kept."""
    kept = (1 - experiment.activation_sparsity) * (0.5 if experiment.cache_dtype == "fp16" else 1)
    return round(1e6 * (10 + 20 * (1 - experiment.sparsity) + experiment.batch_size * (0.1 + kept)))


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Experiment]:
    asked: list[Experiment] = []

    def measure(experiment: Experiment, shape: object, classes: int) -> int:
        asked.append(experiment)
        return formula(experiment, shape, classes)

    monkeypatch.setattr(limit, "_once", measure)
    return asked


def check(megabytes: int, **settings: object) -> None:
    check_device_memory(make_experiment({"device_memory": f"{megabytes}MB", **settings}), SHAPE, 10)


def test_what_fits_is_measured_once(measured: list[Experiment]) -> None:
    check(100, batch_size=64)
    assert len(measured) == 1


def test_without_a_limit_nothing_is_measured(measured: list[Experiment]) -> None:
    check_device_memory(Experiment(), SHAPE, 10)
    assert measured == []


def test_each_knob_says_how_far_it_must_go(measured: list[Experiment]) -> None:
    # 10 + 20 · 0.1 + 64 · (0.1 + 0.1) = 24.8 MB
    with pytest.raises(UserError) as refused:
        check(20, batch_size=64)
    text = str(refused.value)
    assert "device_memory = 20.0 MB" in text
    assert "needs 24.8 MB" in text
    assert "batch_size = 35 (19.0 MB)" in text  # 5 % stay free
    assert "activation_sparsity, sparsity, cache_dtype cannot alone" in text
    assert len(measured) <= 9


def test_half_precision_may_be_enough(measured: list[Experiment]) -> None:
    with pytest.raises(UserError, match=r"cache_dtype = fp16 \(21.6 MB\)"):
        check(23, batch_size=64)


def test_a_knob_that_means_nothing_to_the_method_is_no_remedy(measured: list[Experiment]) -> None:
    with pytest.raises(UserError) as refused:
        check(20, batch_size=64, method="fedavg")
    assert "sparsity" not in str(refused.value)
    found = chosen(16, batch_size=64, method="fl_pqsu")
    assert (found.activation_sparsity, found.cache_dtype) == (0.9, "fp32")


def test_a_process_that_dies_of_too_much_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(experiment: Experiment, shape: object, classes: int) -> int:
        if experiment.batch_size > 16:
            raise FedmefError("killed")
        return formula(experiment, shape, classes)

    monkeypatch.setattr(limit, "_once", dies)
    assert chosen(200, batch_size=64).batch_size == 16


def test_when_no_knob_helps_it_says_so() -> None:
    with pytest.raises(UserError, match="no single knob"):
        check(11, batch_size=64)


def test_a_refused_run_writes_nothing(tmp_path: Path) -> None:
    experiment = Experiment(device_memory=10**6, engine="inline")
    with pytest.raises(UserError, match="device_memory"):
        fedmef.run(experiment, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


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
    knobs = ("sparsity", "activation_sparsity", "cache_dtype", "batch_size")
    return {name: getattr(candidate, name) for name in knobs}


@pytest.mark.parametrize("megabytes", [14, 16, 20, 25, 32, 40, 60, 200])
def test_a_plan_is_the_most_preferred_of_all_that_fit(megabytes: int, measured: list[Experiment]) -> None:
    def needs(candidate: Candidate) -> int:
        return formula(make_experiment(settings_of(candidate)), SHAPE, 10)

    room = (1 - limit.MARGIN) * megabytes * 1e6
    best = next(candidate for candidate in every_setting(64) if needs(candidate) <= room)
    found = chosen(megabytes, batch_size=64)
    assert (found.sparsity, found.activation_sparsity, found.cache_dtype, found.batch_size) == (
        best.sparsity,
        best.activation_sparsity,
        best.cache_dtype,
        best.batch_size,
    )
    assert found.needed == needs(best)
    assert len(measured) <= 10  # of 160


def test_a_fixed_knob_stays() -> None:
    found = chosen(25, "sparsity", "cache_dtype", batch_size=64, sparsity=0.95)
    assert (found.sparsity, found.cache_dtype) == (0.95, "fp32")


def test_a_plan_that_cannot_be_says_what_the_lightest_setting_needs() -> None:
    with pytest.raises(UserError, match="even the lightest setting needs 11"):
        chosen(5, batch_size=64)
    with pytest.raises(UserError, match="--device-memory 96MB"):
        plan_memory(Experiment(), SHAPE, 10)


@pytest.fixture
def starved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above a sparsity of 0.9, nothing can be built."""

    def measure(experiment: Experiment, shape: object, classes: int) -> int:
        if experiment.sparsity > 0.9:
            raise UserError(f"sparsity = {experiment.sparsity}: leaves no weight in 'conv'; lower it")
        return formula(experiment, shape, classes)

    monkeypatch.setattr(limit, "_once", measure)


@pytest.mark.usefixtures("starved")
def test_a_plan_leaves_out_what_cannot_be_built() -> None:
    tried = plan_memory(make_experiment({"device_memory": "15MB", "batch_size": 64}), SHAPE, 10)
    best = next(candidate for candidate in tried if candidate.fits)
    assert (best.sparsity, best.needed) == (0.9, formula(Experiment(**settings_of(best)), SHAPE, 10))
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


@pytest.mark.usefixtures("starved")
def test_a_remedy_is_found_beside_what_cannot_be_built() -> None:
    # 10 + 20 · 0.2 + 32 · (0.1 + 0.1), where 0.99, the lightest, cannot be built
    with pytest.raises(UserError, match=r"sparsity = 0\.8 \(20\.4 MB\)"):
        check(22, batch_size=32, sparsity=0.5)


@pytest.mark.slow
def test_a_plan_holds_in_a_real_process(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.device_limit import run_within

    monkeypatch.setattr(limit, "_once", measure_device_memory)
    experiment = Experiment(device_memory=24 * 10**6, batch_size=64, width=16)
    candidate = next(found for found in plan_memory(experiment, SHAPE, 10) if found.fits)
    assert candidate.needed is not None
    used = run_within(experiment, candidate, SHAPE, 10)
    assert used <= 24_000_000
    assert abs(used - candidate.needed) < 3_000_000  # and it was no lucky guess
