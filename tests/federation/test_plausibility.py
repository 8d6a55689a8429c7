"""Whether an update can be honest: small cases by hand, on a network of two active weights and two biases."""

import math

import numpy as np
import pytest

from fedmef.federation.plausibility import DIVERGED, implausible, lower_median, magnitudes
from fedmef.methods import Extras, Job, Update
from fedmef.sparsity.growth import GrowthScores
from fedmef.sparsity.model import Model
from fedmef.sparsity.network import Input, Network
from fedmef.sparsity.operations import BatchNorm, Flatten
from tests.runs.written import NETWORK, a_model

JOB = Job(method="fedmef", round=4, seed=0, learning_rate=0.25, initial_rate=0.5)
MODEL = a_model(0.0)  # weights (0, 2), biases (0, 0): its norm is 2
SENT = {name: MODEL.state[name] for name in NETWORK.floats}


def update(device: int, change: float, extras: Extras | None = None) -> Update:
    """Changes one bias by this."""
    biases = np.array([change, 0.0], dtype=np.float64)
    return Update(device, 10, 0.5, {**SENT, "out.bias": biases}, extras or Extras())


def refused(*changes: float, ratio: float = 20.0) -> list[int]:
    updates = [update(device, change) for device, change in enumerate(changes)]
    return sorted(implausible(updates, MODEL, SENT, JOB, ratio))


def test_more_than_so_many_times_the_median_is_refused() -> None:
    assert refused(1.0, 1.0, 20.0, 1.0) == []
    assert refused(1.0, 1.0, 20.1, 1.0) == [2]
    assert refused(1.0, 1.0, 20.1, 1.0, ratio=21.0) == []
    assert refused(1.0, -30.0, 30.0, 1.0, 1.0) == [1, 2]


def test_less_than_the_model_itself_is_never_refused() -> None:
    """Where most devices have nothing left to learn, one that has is no liar."""
    assert refused(0.0, 0.0, 2.0) == []
    assert refused(0.0, 0.0, 2.1) == [2]


@pytest.mark.parametrize("changes", [(40.1,), (40.1, 40.1), (0.0, 40.1)])
def test_one_or_two_devices_are_compared_with_the_model(changes: tuple[float, ...]) -> None:
    """A median of two would be what either likes."""
    assert refused(*changes) == [device for device, change in enumerate(changes) if change]
    assert refused(*(min(change, 40.0) for change in changes)) == []


def test_a_model_of_zeros_can_be_left() -> None:
    nothing = {name: np.zeros_like(array) for name, array in SENT.items()}
    honest = Update(0, 10, 0.5, {**nothing, "out.bias": np.array([3.0, 4.0])}, Extras())
    assert implausible([honest], Model(NETWORK, {**MODEL.state, **nothing}), nothing, JOB, 20.0) == {}


@pytest.mark.parametrize("value", [1e30, 3.4e38, -3.4e38, 1e200, math.inf, math.nan])
def test_numbers_of_any_size_are_refused_without_a_warning(value: float) -> None:
    updates = [update(device, 1.0) for device in range(4)] + [update(4, value)]
    found = implausible(updates, MODEL, SENT, JOB, 20.0)
    assert list(found) == [4]
    assert found[4].diverged
    assert found[4].reason.startswith("device 4 sent weights of norm ")
    assert "the round's median is 1, at most 20 is plausible (max_norm_ratio = 20)" in found[4].reason


def test_when_all_devices_diverge_none_of_them_lies() -> None:
    found = implausible([update(device, 1e30) for device in range(5)], MODEL, SENT, JOB, 20.0)
    assert sorted(found) == [0, 1, 2, 3, 4]
    assert all(why.diverged for why in found.values())
    assert refused(*[2 * DIVERGED - 1] * 5) == []


def growth(*gradients: float) -> Extras:
    return Extras({"out": GrowthScores(np.array([1, 2]), np.array(gradients, dtype=np.float32))})


def test_gradients_count_as_one_step_and_may_differ_ten_times_as_much() -> None:
    """One step with a rate of 0.25 down a gradient of norm 40 changes 10."""
    honest = [update(device, 0.0, growth(24.0, 32.0)) for device in range(3)]
    assert magnitudes(honest[0], MODEL, SENT, JOB) == {"weights": 0.0, "gradients": 10.0}
    for largest, expected in ((8000.0, []), (8001.0, [3])):
        liar = update(3, 0.0, growth(0.0, largest))
        assert list(implausible([*honest, liar], MODEL, SENT, JOB, 20.0)) == expected


def test_arrays_of_a_method_are_compared_too_if_they_are_floating_point() -> None:
    honest = Extras(arrays={"a": np.array([3.0]), "b": np.array([4.0]), "c": np.array([7])})
    assert magnitudes(update(0, 0.0, honest), MODEL, SENT, JOB) == {"weights": 0.0, "extras": 5.0}
    liar = Extras(arrays={"a": np.array([1001.0]), "b": np.array([0.0]), "c": np.array([7])})
    updates = [*(update(device, 0.0, honest) for device in range(3)), update(3, 0.0, liar)]
    assert list(implausible(updates, MODEL, SENT, JOB, 20.0)) == [3]


def test_nobody_hides_weights_behind_large_statistics() -> None:
    """The variance is 900 and moves by 300 on every device; a weight that moves by 30 is none of it."""
    layer = BatchNorm(name="bn", inputs=("input",), module="bn", channels=1)
    network = Network(Input((1, 1, 1), (0.5,), (0.25,)), (layer, Flatten(name="flat", inputs=("bn",))))
    sent = {name: np.full(1, 900.0 if name == "bn.running_var" else 1.0) for name in network.floats}
    model = Model(network, dict(sent))
    trained = {**sent, "bn.running_var": np.array([1200.0]), "bn.weight": np.array([1.5])}
    updates = [Update(device, 10, 0.5, trained, Extras()) for device in range(3)]
    assert magnitudes(updates[0], model, sent, JOB) == {"weights": 0.5, "statistics": 300.0}
    liar = Update(3, 10, 0.5, {**trained, "bn.weight": np.array([31.0])}, Extras())
    assert list(implausible([*updates, liar], model, sent, JOB, 20.0)) == [3]


def test_a_single_value_never_pushes_the_lower_median_up() -> None:
    assert lower_median([1.0, 9.0]) == 1.0
    assert lower_median([9.0, 1.0, 2.0]) == 2.0
    assert lower_median([9.0, 1.0, 2.0, 3.0]) == 2.0
