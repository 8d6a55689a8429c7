"""A network and its arrays: which weights are active, and whether the arrays belong to the network."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmef.device.backend import open_backend
from fedmef.errors import FedmefError, NetworkError, UserError
from fedmef.sparsity.arrays import Array
from fedmef.sparsity.masks import mask_from_positions
from fedmef.sparsity.model import Model, check_state
from fedmef.sparsity.network import INPUT, Network
from fedmef.sparsity.operations import Linear, Normalization
from tests.sparsity.networks import (
    chain,
    images,
    network_of_everything,
    normalized_network,
    pooled,
    random_model,
    random_state,
    sparse_network,
)


def layer(shape: tuple[int, int], **rest: Any) -> Network:
    """One sparse layer `fc`."""
    features = images(shape[1], 1, 1)
    fc = Linear(name="fc", inputs=("logits",), module="fc", shape=shape, sparse=True, **rest)
    return chain(*pooled(INPUT), fc, of=features)


def made(network: Network, positions: list[int], values: list[float]) -> Model:
    size = network.sparse_layers["fc"].size
    state: dict[str, Array] = {
        "fc.values": np.array(values, dtype=network.sparse_layers["fc"].dtype),
        "fc.mask": mask_from_positions(np.array(positions, dtype=np.int64), size),
    }
    return Model(network, state)


# Two filters of four weights:     0    1    2    3  |  4    5    6    7
# active                                1.0       3.0          -2.0
def example(**rest: Any) -> Model:
    return made(layer((2, 4), **rest), [1, 3, 6], [1.0, 3.0, -2.0])


def test_a_model_tells_its_active_weights() -> None:
    model = example()
    assert model.positions("fc").tolist() == [1, 3, 6]
    assert model.values("fc").tolist() == [1.0, 3.0, -2.0]
    assert model.masks()["fc"].tolist() == [0b01001010]
    assert model.active_counts() == {"fc": 3}


def test_a_model_without_sparse_layers_has_no_masks() -> None:
    network = chain(*pooled(INPUT))
    assert Model(network, {}).masks() == {}
    assert Model(network, {}).active_counts() == {}


# assign


def test_assigned_positions_and_values_are_there_afterwards() -> None:
    model = example()
    model.assign("fc", np.array([0, 7]), np.array([5.0, -6.0]))
    assert model.positions("fc").tolist() == [0, 7]
    assert model.values("fc").tolist() == [5.0, -6.0]
    check_state(model.network, model.state)


def test_assigned_values_get_the_type_of_the_layer() -> None:
    model = example()
    model.assign("fc", np.array([0]), np.array([1 / 3], dtype=np.float64))
    assert model.values("fc").dtype == np.float32
    precise = example(dtype="float64")
    precise.assign("fc", np.array([0]), np.array([1 / 3], dtype=np.float32))
    assert precise.values("fc").dtype == np.float64


def test_assigning_replaces_arrays_and_never_changes_them() -> None:
    model = example()
    mask, values = model.state["fc.mask"], model.state["fc.values"]
    held = mask.copy(), values.copy()
    model.assign("fc", np.array([0, 7]), np.array([5.0, -6.0]))
    model.center_filters("fc")
    assert np.array_equal(mask, held[0])
    assert np.array_equal(values, held[1])


def test_assigned_values_are_the_models_own() -> None:
    model, values = example(), np.array([5.0, -6.0], dtype=np.float32)
    model.assign("fc", np.array([0, 7]), values)
    values[0] = 9
    assert model.values("fc").tolist() == [5.0, -6.0]


def test_as_many_values_as_positions_are_assigned() -> None:
    with pytest.raises(UserError, match="2 positions but 1 values"):
        example().assign("fc", np.array([0, 7]), np.array([5.0]))


@pytest.mark.parametrize("positions", [[7, 0], [3, 3], [0, 5, 4], [-1, 2], [0, 10**6]])
def test_positions_in_disorder_are_not_assigned(positions: list[int]) -> None:
    with pytest.raises(FedmefError, match="not ascending, distinct and in range"):
        example().assign("fc", np.array(positions), np.zeros(len(positions)))


@given(data=st.data(), rows=st.integers(1, 9), columns=st.integers(1, 9))
@settings(deadline=None)
def test_any_assignment_comes_back(data: st.DataObject, rows: int, columns: int) -> None:
    model = made(layer((rows, columns)), [], [])
    chosen = sorted(data.draw(st.sets(st.integers(0, rows * columns - 1))))
    values = np.arange(len(chosen), dtype=np.float32)
    model.assign("fc", np.array(chosen, dtype=np.int64), values)
    assert model.positions("fc").tolist() == chosen
    assert model.values("fc").tolist() == values.tolist()
    check_state(model.network, model.state)


# center_filters

NSCONV = {"normalization": Normalization()}


def test_the_mean_of_each_filter_is_taken_away_by_hand() -> None:
    model = made(layer((2, 4), **NSCONV), [1, 3, 4, 6, 7], [1.0, 3.0, 1.0, 2.0, 6.0])
    model.center_filters("fc")
    assert model.values("fc").tolist() == [-1.0, 1.0, -2.0, -1.0, 3.0]
    assert model.values("fc").dtype == np.float32
    assert model.positions("fc").tolist() == [1, 3, 4, 6, 7]


def test_a_filter_with_a_single_weight_keeps_it() -> None:
    model = example(**NSCONV)
    model.center_filters("fc")
    assert model.values("fc").tolist() == [-1.0, 1.0, -2.0]


def test_filters_without_weights_change_nothing() -> None:
    model = made(layer((3, 4), **NSCONV), [5, 6], [1.0, 2.0])
    model.center_filters("fc")
    assert model.values("fc").tolist() == [-0.5, 0.5]
    empty = made(layer((3, 4), **NSCONV), [], [])
    empty.center_filters("fc")
    assert empty.values("fc").tolist() == []


def test_a_layer_that_does_not_normalise_is_left_alone() -> None:
    model = example()
    model.center_filters("fc")
    assert model.values("fc").tolist() == [1.0, 3.0, -2.0]


def test_centring_twice_is_centring_once() -> None:
    model = random_model(normalized_network(), sparsity=0.5)
    model.center_filters("second")
    once = model.values("second")
    model.center_filters("second")
    np.testing.assert_allclose(model.values("second"), once, atol=1e-6)


def test_centring_does_not_change_what_the_network_computes() -> None:
    model = random_model(normalized_network(), sparsity=0.5)
    pixels = np.random.default_rng(0).integers(0, 256, (4, 1, 8, 8), dtype=np.uint8)
    backend = open_backend(model.network, "torch")
    backend.load(model.state)
    before = backend.predict(pixels)
    model.center_filters("second")
    model.center_filters("third")
    backend.load(model.state)
    np.testing.assert_allclose(backend.predict(pixels), before, rtol=1e-4, atol=1e-5)


# check_state


@pytest.mark.parametrize("network", [sparse_network(), normalized_network(), network_of_everything()])
@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.999])
def test_a_state_of_the_network_is_accepted(network: Network, sparsity: float) -> None:
    check_state(network, random_state(network, sparsity))


STATE = random_state(sparse_network())


@pytest.mark.parametrize(
    ("name", "array", "reason"),
    [
        ("1.weight", None, r"has no 1\.weight"),
        ("other", np.zeros(1), "has no other"),
        (
            "1.weight",
            STATE["1.weight"].astype(np.float64),
            r"1\.weight is of type float64 instead of float32",
        ),
        ("1.weight", STATE["1.weight"][:3], r"1\.weight is of shape \[3\] instead of \[16\]"),
        ("1.weight", STATE["1.weight"][:, None], r"1\.weight is of shape \[16, 1\]"),
        ("1.running_var", -STATE["1.running_var"], "negative variance"),
        ("1.num_batches_tracked", np.array(3, dtype=np.int32), "of type int32 instead of int64"),
        ("1.num_batches_tracked", np.array([3]), r"of shape \[1\]"),
        ("0.mask", STATE["0.mask"][:-1], r"0\.mask is of shape \[143\]"),
        ("0.mask", STATE["0.mask"].astype(np.int64), "of type int64"),
        ("0.mask", np.zeros(144, dtype=np.uint8), "0 active positions but 0.values has 115"),
        ("0.values", STATE["0.values"][:-1], "115 active positions but 0.values has 114"),
        ("0.values", STATE["0.values"][None], "do not belong together"),
        ("0.values", STATE["0.values"].astype(np.float16), "of type float16"),
    ],
)
def test_a_state_of_another_network_is_refused(name: str, array: Array | None, reason: str) -> None:
    state = {**STATE}
    state.pop(name, None)
    if array is not None:
        state[name] = array
    with pytest.raises(NetworkError, match=reason):
        check_state(sparse_network(), state)


def test_padding_bits_of_a_mask_must_be_clear() -> None:
    model = made(layer((1, 3)), [0], [1.0])
    check_state(model.network, model.state)
    model.state["fc.mask"] = np.array([0b1001], dtype=np.uint8)  # there is no position 3
    with pytest.raises(NetworkError, match="do not belong together"):
        check_state(model.network, model.state)


def test_a_diverged_state_is_still_a_state() -> None:
    state = {**STATE, "1.weight": np.full(16, np.nan, dtype=np.float32)}
    check_state(sparse_network(), state)  # who must not have it, checks that itself
