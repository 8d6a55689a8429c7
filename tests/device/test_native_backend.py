"""The native backend behind the protocol: states, steps, pulls, growth, and what it refuses."""

import pytest

pytest.importorskip("fedmef.native._kernels")

from dataclasses import replace
from typing import Any

import numpy as np

from fedmef.device.backend import Backend
from fedmef.device.native_backend import NativeBackend, unsupported
from fedmef.errors import NetworkError, UserError
from fedmef.methods.extrusion import Pull
from fedmef.native._kernels import available
from fedmef.sparsity.masks import mask_from_positions
from fedmef.sparsity.model import State
from fedmef.sparsity.network import INPUT, Input, Network
from fedmef.sparsity.operations import (
    BatchNorm,
    Convolution,
    Flatten,
    Linear,
    MaxPool,
    Opaque,
    Operation,
)

IMAGES = np.array([[[[255, 0], [51, 102]]]], dtype=np.uint8)  # normalised: 1, 0, 0.2, 0.4
LABELS = np.array([0])


def pixels(*before: Operation, frozen: tuple[str, ...] = (), **changes: Any) -> Network:
    """A sparse linear layer on the four pixels of an image."""
    last = before[-1].name if before else INPUT
    head = Linear(name="head", inputs=("flat",), module="head", shape=(2, 4), sparse=True)
    operations = (*before, Flatten(name="flat", inputs=(last,)), replace(head, **changes))
    return Network(Input((1, 2, 2), (0.0,), (1.0,)), operations, frozen)


def state_of(values: list[float], positions: list[int]) -> State:
    return {
        "head.values": np.array(values, dtype=np.float32),
        "head.mask": mask_from_positions(np.array(positions, dtype=np.int64), 8),
    }


def opened(network: Network, state: State, **options: Any) -> NativeBackend:
    backend = NativeBackend(network, **options)
    backend.load(state)
    return backend


def test_it_is_a_backend() -> None:
    backend: Backend = opened(pixels(), state_of([1.0], [0]))
    assert backend.network == pixels()
    assert NativeBackend(pixels()).instructions == available()[0]
    assert NativeBackend(pixels(), threads=2).threads == 2


def test_a_state_of_some_arrays_has_no_others() -> None:
    backend = opened(pixels(), state_of([1.0, -1.0], [0, 6]))
    assert list(backend.state(["head.mask"])) == ["head.mask"]
    assert list(backend.state()) == list(backend.network.arrays)


def test_a_step_by_hand() -> None:
    backend = opened(pixels(), state_of([1.0, -1.0], [0, 6]))  # logits 1 and -0.2
    np.testing.assert_allclose(backend.predict(IMAGES), [[1.0, -0.2]], atol=1e-6)
    step = backend.step(IMAGES, LABELS, 0.5)
    wrong = 1 / (1 + np.exp(1.2))
    assert step.loss == pytest.approx(-np.log(1 - wrong), abs=1e-6)
    assert step.pulled_norm == 0
    np.testing.assert_allclose(
        backend.state()["head.values"], [1 + 0.5 * wrong, -1 - 0.5 * wrong * 0.2], rtol=1e-6
    )


def test_a_pull_alone_multiplies_the_marked_weights() -> None:
    black = np.zeros_like(IMAGES)
    backend = opened(pixels(), state_of([3.0, 5.0, -4.0], [0, 2, 6]))
    step = backend.step(black, LABELS, 0.1, Pull({"head": np.array([0, 2])}, 2.0))
    np.testing.assert_allclose(backend.state()["head.values"], [3 * 0.6, 5, -4 * 0.6], rtol=1e-6)
    assert step.pulled_norm == pytest.approx(5 * 0.6, rel=1e-6)
    assert backend.step(black, LABELS, 0.1).pulled_norm == 0
    np.testing.assert_allclose(backend.state()["head.values"], [3 * 0.6, 5, -4 * 0.6], rtol=1e-6)


def test_other_marks_replace_the_ones_before() -> None:
    black = np.zeros_like(IMAGES)
    backend = opened(pixels(), state_of([3.0, 5.0], [0, 2]))
    backend.step(black, LABELS, 0.1, Pull({"head": np.array([0])}, 2.0))
    backend.step(black, LABELS, 0.1, Pull({"head": np.array([1])}, 2.0))
    np.testing.assert_allclose(backend.state()["head.values"], [3 * 0.6, 5 * 0.6], rtol=1e-6)


@pytest.mark.parametrize("marked", [{"head": np.array([2])}, {"head": np.array([-1])}])
def test_marks_beyond_the_active_weights_are_refused(marked: dict[str, Any]) -> None:
    backend = opened(pixels(), state_of([3.0, 5.0], [0, 2]))
    with pytest.raises(NetworkError, match="head"):
        backend.step(IMAGES, LABELS, 0.1, Pull(marked, 1.0))
    with pytest.raises(UserError, match="tail"):
        backend.step(IMAGES, LABELS, 0.1, Pull({"tail": np.array([0])}, 1.0))


def test_growth_by_hand_trains_nothing() -> None:
    state = state_of([1.0, -1.0], [0, 6])
    backend = opened(pixels(), state)
    wrong = 1 / (1 + np.exp(1.2))
    scores = backend.growth(IMAGES, LABELS, {"head": 3})["head"]
    assert scores.positions.tolist() == [3, 4, 7]  # pixels of 0.4, 1 and 0.4; that of 0 never
    np.testing.assert_allclose(scores.gradients, [-0.4 * wrong, wrong, 0.4 * wrong], rtol=1e-5)
    assert backend.growth(IMAGES, LABELS, {"head": 0})["head"].positions.size == 0
    assert backend.growth(IMAGES, LABELS, {"head": 99})["head"].positions.tolist() == [2, 3, 4, 7]
    assert np.array_equal(backend.state()["head.values"], state["head.values"])
    with pytest.raises(UserError, match="tail"):
        backend.growth(IMAGES, LABELS, {"tail": 1})


def test_of_equal_gradients_the_lower_positions_grow() -> None:
    backend = opened(pixels(), state_of([], []))
    scores = backend.growth(np.full_like(IMAGES, 255), LABELS, {"head": 5})["head"]
    assert scores.positions.tolist() == [0, 1, 2, 3, 4]


def test_growth_leaves_statistics_alone_and_a_step_does_not() -> None:
    norm = BatchNorm(name="norm", inputs=(INPUT,), module="norm", channels=1)
    state = state_of([1.0], [0])
    one = np.ones(1, dtype=np.float32)
    for name in ("weight", "bias", "running_mean", "running_var"):
        state[f"norm.{name}"] = one
    state["norm.num_batches_tracked"] = np.array(4)
    backend = opened(pixels(norm), state)
    backend.growth(IMAGES, LABELS, {"head": 1})
    assert backend.state()["norm.num_batches_tracked"] == 4
    assert np.array_equal(backend.state()["norm.running_mean"], one)
    backend.step(IMAGES, LABELS, 0.1)
    assert backend.state()["norm.num_batches_tracked"] == 5
    assert backend.state()["norm.running_mean"] == pytest.approx(0.9 + 0.1 * 0.4)


def test_a_frozen_array_stays_as_it_is() -> None:
    network = pixels(frozen=("head.values",), bias=True)
    state = state_of([1.0], [0]) | {"head.bias": np.zeros(2, dtype=np.float32)}
    backend = opened(network, state)
    backend.step(IMAGES, LABELS, 0.5)
    assert backend.state()["head.values"].tolist() == [1.0]
    assert backend.state()["head.bias"].any()


def test_layers_may_have_other_masks_after_a_load() -> None:
    backend = opened(pixels(), state_of([1.0], [0]))
    backend.load(state_of([2.0, 3.0], [2, 4]))
    np.testing.assert_allclose(backend.predict(IMAGES), [[0.4, 3.0]], rtol=1e-6)
    backend.load(state_of([], []))
    assert backend.predict(IMAGES).tolist() == [[0.0, 0.0]]
    assert backend.step(IMAGES, LABELS, 0.1).loss == pytest.approx(np.log(2))


def test_a_wrong_state_is_refused_and_changes_nothing() -> None:
    backend = opened(pixels(), state_of([1.0], [0]))
    good = state_of([2.0], [0])
    wrong: list[State] = [
        {"head.values": good["head.values"]},
        good | {"head.values": np.ones(1)},
        good | {"head.values": np.ones(2, dtype=np.float32)},
        good | {"head.mask": np.zeros(2, dtype=np.uint8)},
        good | {"more": np.zeros(1)},
    ]
    for state in wrong:
        with pytest.raises(NetworkError):
            backend.load(state)
    assert backend.state()["head.values"].tolist() == [1.0]


@pytest.mark.parametrize(
    ("images", "labels"),
    [
        (IMAGES, np.array([2])),
        (IMAGES, np.array([-1])),
        (IMAGES, np.array([0, 1])),
        (IMAGES, np.array([0.5])),
        (IMAGES[:, :, :1], LABELS),
        (IMAGES.astype(np.float32), LABELS),
        (IMAGES[:0], LABELS[:0]),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(images: Any, labels: Any) -> None:
    backend = opened(pixels(), state_of([1.0], [0]))
    for compute in (
        lambda: backend.step(images, labels, 0.1),
        lambda: backend.growth(images, labels, {"head": 1}),
    ):
        with pytest.raises(NetworkError):
            compute()
    assert backend.state()["head.values"].tolist() == [1.0]


def test_no_images_give_no_logits_and_read_only_ones_are_taken() -> None:
    backend = opened(pixels(), state_of([1.0], [0]))
    assert backend.predict(IMAGES[:0]).shape == (0, 2)
    images = np.repeat(IMAGES, 2, 0)[::2]
    images.flags.writeable = False
    np.testing.assert_allclose(backend.predict(images), [[1.0, 0.0]])


def test_nothing_is_computed_without_a_state() -> None:
    with pytest.raises(NetworkError, match="state"):
        NativeBackend(pixels()).predict(IMAGES)


def unsupported_networks() -> dict[str, Network]:
    conv = Convolution(name="conv", inputs=(INPUT,), module="conv", shape=(1, 1, 1, 1), sparse=True)
    again = replace(conv, name="again", inputs=("conv",))
    return {
        "PyTorch code": pixels(Opaque(name="own", inputs=(INPUT,), description="custom", shape=(1, 2, 2))),
        "float64": pixels(dtype="float64"),
        "used twice": pixels(conv, again),
        "SWAT": pixels(replace(conv, swat=0.5)),
        "window is too large": pixels(
            replace(conv, shape=(1, 1, 2, 2), padding=(500, 500), dilation=(1000, 1000))
        ),
    }


@pytest.mark.parametrize("why", ["PyTorch code", "float64", "used twice", "SWAT", "window is too large"])
def test_a_network_that_it_cannot_execute_says_why(why: str) -> None:
    network = unsupported_networks()[why]
    assert why in (unsupported(network) or "")
    with pytest.raises(NetworkError, match=why):
        NativeBackend(network)


def test_a_maximum_of_many_elements_is_left_to_pytorch() -> None:
    pool = MaxPool(name="pool", inputs=(INPUT,), kernel=(17, 17), stride=(1, 1))
    head = Linear(name="head", inputs=("flat",), module="head", shape=(2, 1))
    network = Network(
        Input((1, 17, 17), (0.0,), (1.0,)), (pool, Flatten(name="flat", inputs=("pool",)), head)
    )
    assert "maximum" in (unsupported(network) or "")


def test_the_environment_names_the_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDMEF_INSTRUCTIONS", available()[-1])
    assert NativeBackend(pixels()).instructions == available()[-1]
    monkeypatch.setenv("FEDMEF_INSTRUCTIONS", "z80")
    with pytest.raises(UserError, match="z80"):
        NativeBackend(pixels())


def test_memory_is_counted_by_purpose() -> None:
    backend = opened(pixels(), state_of([1.0], [0]))
    assert backend.memory()["arena"] == 0
    backend.step(IMAGES, LABELS, 0.1)
    memory = backend.memory()
    assert memory.keys() == {"arena", "weights", "indices", "scratch"}
    assert min(memory.values()) > 0
