"""The update: what a device sends up, and what a server takes for one."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedmef.errors import FedmefError, MessageError
from fedmef.sparsity.arrays import Array
from fedmef.sparsity.growth import GrowthScores
from fedmef.sparsity.masks import mask_from_positions
from fedmef.wire.broadcast import encode_broadcast
from fedmef.wire.container import MESSAGE_VERSION, checksum_of, decode, encode, read_header
from fedmef.wire.floats import WireType, from_bfloat16, to_bfloat16
from fedmef.wire.job import Job
from fedmef.wire.schemes import Rule
from fedmef.wire.update import Extras, Update, decode_update, encode_update
from tests.sparsity.networks import random_model, sparse_network

NETWORK = sparse_network()
MODEL = random_model(NETWORK)
WEIGHTS = {name: MODEL.state[name] for name in NETWORK.floats}
HEADER = {"device": 0, "samples": 1, "loss": "0", "round": 3, "answers": "0" * 32}
JOB = Job(method="fedmef", round=3, seed=7, learning_rate=0.1, initial_rate=0.5)


def update(extras: Extras | None = None) -> Update:
    return Update(7, 100, 0.5, WEIGHTS, extras or Extras())


def sent(extras: Extras | None = None, scheme: Rule = "auto", wire_dtype: WireType = "fp32") -> bytes:
    return encode_update(update(extras), NETWORK, scheme=scheme, wire_dtype=wire_dtype)


def arrays_of(message: bytes) -> dict[str, Array]:
    return decode(message, MESSAGE_VERSION)[0]


def test_an_update_comes_back_and_never_repeats_the_mask() -> None:
    received = decode_update(sent(), NETWORK)
    assert (received.device, received.samples, received.loss) == (7, 100, 0.5)
    assert received.weights.keys() == {
        "0.values",
        "0.bias",
        "1.weight",
        "1.bias",
        "1.running_mean",
        "1.running_var",
    }
    for name, array in WEIGHTS.items():
        assert received.weights[name].dtype == np.float32
        assert np.array_equal(received.weights[name], array)
    assert not any("mask" in name for name in arrays_of(sent()))


def test_an_update_says_which_message_it_answers() -> None:
    message = encode_broadcast(MODEL, JOB)
    answer = replace(update(), round=JOB.round, answers=checksum_of(message))
    received = decode_update(encode_update(answer, NETWORK), NETWORK)
    assert (received.round, received.answers) == (3, decode_checksum(message))


def decode_checksum(message: bytes) -> object:
    return read_header(message, MESSAGE_VERSION)["checksum"]


@pytest.mark.parametrize("scheme", ["auto", "paper", "dense", "bitmap", "coo", "csr", "csc", "rice"])
def test_growth_scores_masks_and_arrays_travel_with_the_update(scheme: Rule) -> None:
    gradients = np.array([0.5, -0.5], dtype=np.float32)
    growth = {"0": GrowthScores(np.array([1, 1100]), gradients)}
    mask = mask_from_positions(np.array([5, 1000]), 1152)
    extras = Extras(growth, {"time": np.array(3), "a/b": np.ones(2)}, {"0": mask})
    received = decode_update(sent(extras, scheme), NETWORK).extras
    assert received.growth["0"].positions.tolist() == [1, 1100]
    assert received.growth["0"].gradients.tolist() == [0.5, -0.5]
    assert received.arrays["time"].item() == 3
    assert received.arrays["a/b"].tolist() == [1.0, 1.0]
    assert np.array_equal(received.masks["0"], mask)


def test_only_weights_are_rounded() -> None:
    exact = np.array([1e-9, 7e4], dtype=np.float32)
    extras = Extras({"0": GrowthScores(np.array([1, 2]), exact)}, {"time": exact})
    received = decode_update(sent(extras, wire_dtype="fp16"), NETWORK)
    values = WEIGHTS["0.values"]
    assert np.array_equal(received.weights["0.values"], values.astype(np.float16).astype(np.float32))
    assert np.array_equal(received.extras.growth["0"].gradients, exact)
    assert np.array_equal(received.extras.arrays["time"], exact)


def test_bfloat16_is_rounded_once() -> None:
    received = decode_update(sent(wire_dtype="bf16"), NETWORK).weights["0.values"]
    assert np.array_equal(received, from_bfloat16(to_bfloat16(WEIGHTS["0.values"])))


def test_growth_positions_and_masks_take_a_part_of_what_they_took_plain() -> None:
    positions = np.arange(0, 1152, 9)
    growth = Extras({"0": GrowthScores(positions, np.zeros(positions.size, dtype=np.float32))})
    assert arrays_of(sent(growth))["positions/0"].size < 0.2 * 4 * positions.size
    assert arrays_of(sent(Extras(masks=MODEL.masks())))["masks/0"].size < 0.6 * 1152 / 8


def test_a_layer_without_growth_scores_is_no_trouble() -> None:
    nothing = GrowthScores(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32))
    assert decode_update(sent(Extras({"0": nothing})), NETWORK).extras.growth["0"].positions.size == 0


@pytest.mark.parametrize("positions", [[5, 1], [5, 5]])
def test_growth_positions_in_disorder_are_not_sent(positions: list[int]) -> None:
    growth = Extras({"0": GrowthScores(np.array(positions), np.zeros(2))})
    with pytest.raises(FedmefError, match="growth positions of 0 are not ascending"):
        sent(growth)


def test_positions_belong_to_a_sparse_layer() -> None:
    with pytest.raises(FedmefError, match="positions of 1, which is no sparse layer"):
        sent(Extras(masks={"1": np.zeros(1, dtype=np.uint8)}))


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_diverged_loss_can_be_sent(loss: float) -> None:
    received = decode_update(encode_update(replace(update(), loss=loss), NETWORK), NETWORK).loss
    assert received == loss or (math.isnan(received) and math.isnan(loss))


@pytest.mark.parametrize(
    "name",
    [
        "values",
        "other/values",
        "weights/values",
        "weights/0.mask",
        "weights/1.num_batches_tracked",
        "growth/0",
        "positions/0",
        "gradients/0",
        "positions/1",
        "masks/1",
        "masks/0",
    ],
)
def test_an_update_of_another_form_is_refused(name: str) -> None:
    with pytest.raises(MessageError):
        decode_update(encode({name: np.zeros(1)}, HEADER, MESSAGE_VERSION), NETWORK)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("weights/0.values", np.zeros(3)),
        ("weights/0.values", np.zeros(3, dtype=np.int64)),
        ("gradients/0", np.zeros(2)),
        ("positions/0", np.zeros(2, dtype=np.uint8)),
        ("positions/0", np.zeros(9, dtype=np.float32)),
        ("masks/0", np.zeros((1, 144), dtype=np.uint8)),
    ],
)
def test_an_array_of_another_type_is_refused(name: str, array: Array) -> None:
    growth = {"0": GrowthScores(np.array([1, 1100]), np.zeros(2, dtype=np.float32))}
    arrays = arrays_of(sent(Extras(growth, masks=MODEL.masks()))) | {name: array}
    with pytest.raises(MessageError):
        decode_update(encode(arrays, HEADER, MESSAGE_VERSION), NETWORK)


@pytest.mark.parametrize(
    "wrong",
    [
        {"device": "0"},
        {"device": -1},
        {"device": True},
        {"device": None},
        {"samples": 10**400},
        {"samples": 1.5},
        {"loss": "low"},
        {"loss": []},
        {"loss": None},
        {"round": -1},
        {"round": "3"},
        {"answers": "0" * 31},
        {"answers": 10**31},
        {"answers": ["0"] * 32},
    ],
    ids=lambda wrong: ascii(wrong)[:30],
)
def test_an_update_with_wrong_numbers_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(MessageError):
        decode_update(encode({}, {**HEADER, **wrong}, MESSAGE_VERSION), NETWORK)


@pytest.mark.parametrize("name", HEADER)
def test_an_update_without_its_numbers_is_refused(name: str) -> None:
    less = {key: value for key, value in HEADER.items() if key != name}
    with pytest.raises(MessageError, match="not a device's update"):
        decode_update(encode({}, less, MESSAGE_VERSION), NETWORK)


def test_a_broadcast_is_no_update() -> None:
    with pytest.raises(MessageError):
        decode_update(encode_broadcast(MODEL, JOB), NETWORK)


def test_a_file_is_no_update() -> None:
    with pytest.raises(MessageError, match="version 4"):
        decode_update(encode({}, HEADER), NETWORK)
