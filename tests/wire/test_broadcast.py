"""The broadcast: a model and a job, whole or without what the device holds."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedmef.errors import MessageError, NotHeldError, ValueRangeError
from fedmef.sparsity.arrays import Array
from fedmef.sparsity.model import Model
from fedmef.sparsity.network import Network
from fedmef.wire.broadcast import NETWORK, decode_broadcast, encode_broadcast
from fedmef.wire.container import MESSAGE_VERSION, Header, decode, encode
from fedmef.wire.floats import WireType, to_bfloat16
from fedmef.wire.job import Job
from fedmef.wire.schemes import Rule
from fedmef.wire.store import Store, mask_version
from fedmef.wire.update import Extras, Update, encode_update
from tests.sparsity.networks import (
    chain,
    convolution,
    dense_network,
    images,
    network_of_everything,
    normalized_network,
    pooled,
    random_model,
    same_state,
    sparse_network,
)

JOB = Job(method="fedmef", round=3, seed=7, learning_rate=0.1, initial_rate=0.5, adjustment_rate=0.4)


def model(seed: int = 0) -> Model:
    return random_model(sparse_network(), seed=seed)


def exchange_one(of: Model) -> Model:
    """The same model with another mask, that differs in two positions."""
    positions = of.positions("0")
    grown = next(position for position in range(1152) if position not in set(positions.tolist()))
    of.assign("0", np.sort(np.append(positions[1:], grown)), of.values("0"))
    return of


def parts(message: bytes) -> tuple[dict[str, Array], Header]:
    return decode(message, MESSAGE_VERSION)


def forged(message: bytes, **header: object) -> bytes:
    arrays, there = parts(message)
    return encode(arrays, {**there, **header}, MESSAGE_VERSION)


@pytest.mark.parametrize("scheme", ["auto", "paper", "dense", "bitmap", "coo", "csr", "csc", "rice"])
@pytest.mark.parametrize("network", [sparse_network(), normalized_network(), network_of_everything()])
def test_a_broadcast_carries_the_network_the_model_with_its_masks_and_the_job(
    scheme: Rule, network: Network
) -> None:
    sent, job = random_model(network), replace(JOB, wire_scheme=scheme)
    received, read = decode_broadcast(encode_broadcast(sent, job))
    assert read == job
    assert received.network == network
    assert same_state(received.state, sent.state)


def test_a_model_without_masks_is_sent_as_it_is() -> None:
    dense = random_model(dense_network())
    message = encode_broadcast(dense, JOB)
    assert encode_broadcast(dense, JOB, known={}) == message
    assert same_state(decode_broadcast(message)[0].state, dense.state)


@pytest.mark.parametrize("sparsity", [0.0, 0.9999])
def test_masks_of_all_or_none_of_the_weights_come_back(sparsity: float) -> None:
    sent = random_model(sparse_network(), sparsity)
    assert sent.active_counts() == {"0": 1152 if sparsity == 0 else 0}
    for scheme in ("auto", "dense", "coo", "rice"):
        received, _ = decode_broadcast(encode_broadcast(sent, replace(JOB, wire_scheme=scheme)))
        assert same_state(received.state, sent.state)


def test_half_values_are_rounded_once_and_take_half() -> None:
    exact, half, brain = (
        encode_broadcast(model(), replace(JOB, wire_dtype=dtype)) for dtype in ("fp32", "fp16", "bf16")
    )
    values = model().values("0")
    assert np.array_equal(decode_broadcast(half)[0].values("0"), values.astype(np.float16).astype(np.float32))
    assert len(exact) - len(half) >= 2 * values.size
    assert len(brain) == len(half)
    (received, _) = decode_broadcast(brain)
    assert np.array_equal(to_bfloat16(received.values("0")), to_bfloat16(values))
    assert received.values("0").dtype == np.float32


def test_a_value_beyond_the_type_of_the_wire_is_named() -> None:
    diverged = model()
    diverged.state["1.weight"] = np.full(16, 7e4, dtype=np.float32)
    with pytest.raises(ValueRangeError, match=r"1\.weight has the value 70000"):
        encode_broadcast(diverged, replace(JOB, wire_dtype="fp16"))


# What a device holds.


def test_a_device_with_the_network_is_not_sent_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    decode_broadcast(encode_broadcast(model(), JOB), store)
    message = encode_broadcast(model(1), JOB, knows_network=True)
    assert NETWORK not in parts(message)[0]
    received, _ = decode_broadcast(message, store)
    assert received.network == sparse_network()
    assert same_state(received.state, model(1).state)


def test_a_device_that_lacks_the_network_says_so(tmp_path: Path) -> None:
    message = encode_broadcast(model(), JOB, knows_network=True)
    for store in (None, Store(tmp_path)):
        with pytest.raises(NotHeldError):
            decode_broadcast(message, store)


def test_a_device_with_the_same_masks_is_sent_none(tmp_path: Path) -> None:
    store = Store(tmp_path)
    decode_broadcast(encode_broadcast(model(), JOB), store)
    message = encode_broadcast(model(), JOB, known=model().masks())
    assert "0.mask" not in parts(message)[0]
    assert same_state(decode_broadcast(message, store)[0].state, model().state)


def test_a_device_with_the_masks_before_is_sent_the_difference(tmp_path: Path) -> None:
    store, now = Store(tmp_path), exchange_one(model())
    decode_broadcast(encode_broadcast(model(), JOB), store)
    message = encode_broadcast(now, JOB, known=model().masks())
    assert parts(message)[0]["0.mask"].size < 25
    assert len(message) < len(encode_broadcast(now, JOB))
    assert same_state(decode_broadcast(message, store)[0].state, now.state)
    unchanged = encode_broadcast(now, JOB, known=now.masks())
    # what came as a difference is kept
    assert same_state(decode_broadcast(unchanged, store)[0].state, now.state)


@pytest.mark.parametrize("now", [model(), exchange_one(model())])
def test_a_device_that_lacks_the_masks_says_so(now: Model, tmp_path: Path) -> None:
    message = encode_broadcast(now, JOB, known=model().masks())
    for store in (None, Store(tmp_path)):
        with pytest.raises(NotHeldError):
            decode_broadcast(message, store)


def test_a_device_keeps_no_masks_when_the_job_says_so(tmp_path: Path) -> None:
    decode_broadcast(encode_broadcast(model(), replace(JOB, remember_masks=False)), Store(tmp_path))
    assert [file.suffix for file in tmp_path.iterdir()] == [".json"]


def test_masks_that_are_not_those_named_are_refused(tmp_path: Path) -> None:
    message = forged(encode_broadcast(model(), JOB), masks=mask_version(model(1).masks()))
    with pytest.raises(MessageError, match="not those that the message names"):
        decode_broadcast(message, Store(tmp_path))
    assert not list(tmp_path.glob("*.safetensors"))


def test_a_network_that_is_not_the_one_named_is_refused(tmp_path: Path) -> None:
    message = forged(encode_broadcast(model(), JOB), network=dense_network().digest)
    with pytest.raises(MessageError, match="not the one that the message names"):
        decode_broadcast(message, Store(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_network_that_is_too_large_is_refused_and_not_kept(tmp_path: Path) -> None:
    message = encode_broadcast(model(), JOB)
    with pytest.raises(MessageError, match="a network of 1,152 weights: this device takes at most 1,151"):
        decode_broadcast(message, Store(tmp_path), most_weights=1151)
    assert not list(tmp_path.iterdir())
    decode_broadcast(message, Store(tmp_path), most_weights=1152)
    assert [file.stem for file in tmp_path.glob("*.json")] == [sparse_network().digest]


def test_a_network_that_is_held_already_is_refused_too(tmp_path: Path) -> None:
    """Somebody may have lowered the limit."""
    decode_broadcast(encode_broadcast(model(), JOB), Store(tmp_path))
    with pytest.raises(MessageError, match="takes at most 1,151"):
        decode_broadcast(encode_broadcast(model(), JOB, knows_network=True), Store(tmp_path), 1151)


def test_masks_of_another_network_are_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    decode_broadcast(encode_broadcast(random_model(normalized_network()), JOB), store)
    other = mask_version(random_model(normalized_network()).masks())
    same, difference = (
        encode_broadcast(now, JOB, known=model().masks()) for now in (model(), exchange_one(model()))
    )
    for message in (forged(same, masks=other), forged(difference, known=other)):
        with pytest.raises(MessageError, match="those of another network"):
            decode_broadcast(message, store)


def test_masks_of_a_network_with_layers_of_the_same_names_are_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    smaller = chain(
        convolution("0", "input", (16, 8, 1, 1), sparse=True, bias=True), *pooled("0"), of=images(8, 6, 6)
    )
    decode_broadcast(encode_broadcast(random_model(smaller), JOB), store)
    other = mask_version(random_model(smaller).masks())
    same, difference = (
        encode_broadcast(now, JOB, known=model().masks()) for now in (model(), exchange_one(model()))
    )
    for message in (forged(same, masks=other), forged(difference, known=other)):
        with pytest.raises(MessageError):
            decode_broadcast(message, store)


@pytest.mark.parametrize("field", ["masks", "known", "network"])
@pytest.mark.parametrize(
    "version", ["../../secret", "0" * 31, "0" * 33, "G" * 32, "0" * 32 + "\n", 7, ["0" * 32]]
)
def test_a_version_never_leads_to_another_file(field: str, version: object, tmp_path: Path) -> None:
    now = exchange_one(model()) if field == "known" else model()
    message = encode_broadcast(now, JOB, known=model().masks(), knows_network=field == "network")
    with pytest.raises(MessageError, match=f"'{field}' is not a version"):
        decode_broadcast(forged(message, **{field: version}), Store(tmp_path))


# What is not a broadcast.


@pytest.mark.parametrize(
    ("name", "array", "reason"),
    [
        ("1.weight", None, r"has no 1\.weight"),
        ("other", np.zeros(1), "has no other"),
        ("1.weight", np.zeros(3, dtype=np.float32), r"1\.weight is of shape \[3\]"),
        ("1.weight", np.full(16, np.nan, dtype=np.float32), "not finite"),
        ("1.weight", np.full(16, np.inf, dtype=np.float16), "not finite"),
        ("1.weight", np.zeros(16, dtype=np.int32), "of type int32"),
        ("1.weight", np.zeros(16, dtype=np.float64), "of type float64"),
        ("1.running_var", np.full(16, -1.0, dtype=np.float32), "negative variance"),
        ("1.num_batches_tracked", np.zeros((), dtype=np.float32), "of type float32 instead of int64"),
        ("0.values", None, r"has no 0\.values"),
        ("0.values", np.zeros(3, dtype=np.float32), "3 values for 115 active positions"),
        ("0.values", np.zeros(115, dtype=np.int64), "of type int64"),
        ("0.mask", np.zeros(9, dtype=np.uint8), "0 active|dense"),
        ("0.mask", np.zeros(9, dtype=np.float32), "a code of type float32"),
        ("0.mask", None, "the message has no 0.mask|does not hold|keeps no masks"),
        (NETWORK, np.zeros(9, dtype=np.float32), "a network must be bytes"),
        (NETWORK, np.zeros(9, dtype=np.uint8), "a network must be JSON"),
        (NETWORK, np.frombuffer(b"{}", dtype=np.uint8), "not a network of format"),
        (NETWORK, np.frombuffer(b"[" * 200_000, dtype=np.uint8), "a network must be JSON"),
        (NETWORK, np.frombuffer(b" " * (2**20 + 1), dtype=np.uint8), "the limit is"),
    ],
)
def test_a_broadcast_that_does_not_fit_is_refused(name: str, array: Array | None, reason: str) -> None:
    arrays, header = parts(encode_broadcast(model(), JOB))
    arrays.pop(name, None)
    if array is not None:
        arrays[name] = array
    with pytest.raises((MessageError, NotHeldError), match=reason):
        decode_broadcast(encode(arrays, header, MESSAGE_VERSION))


def test_a_network_that_is_named_rightly_must_still_be_one() -> None:
    """Whoever means harm names the right digest."""
    large = chain(convolution("0", "input", (2**20, 8, 1, 1), sparse=True), *pooled("0"), of=images(8, 6, 6))
    arrays, header = parts(encode_broadcast(model(), JOB))
    arrays[NETWORK] = np.frombuffer(large.to_json(), dtype=np.uint8)
    with pytest.raises(MessageError):
        decode_broadcast(encode(arrays, {**header, "network": large.digest}, MESSAGE_VERSION))


@pytest.mark.parametrize("job", [None, 3, {}, {"round": "3"}, {**vars(JOB), "learning_rate": -1}])
def test_a_job_that_makes_no_sense_is_refused(job: object) -> None:
    with pytest.raises(MessageError, match="job"):
        decode_broadcast(forged(encode_broadcast(model(), JOB), job=job))


def test_a_broadcast_that_names_no_network_is_refused() -> None:
    with pytest.raises(MessageError, match="names no network"):
        decode_broadcast(forged(encode_broadcast(model(), JOB), network=None))


def test_an_update_is_no_broadcast() -> None:
    update = Update(0, 1, 0.0, {"1.weight": model().state["1.weight"]}, Extras())
    with pytest.raises(MessageError):
        decode_broadcast(encode_update(update, sparse_network()))


def test_a_file_is_no_broadcast() -> None:
    with pytest.raises(MessageError, match="version 4"):
        decode_broadcast(encode(model().state, {}))


@pytest.mark.parametrize("wire_dtype", ["fp32", "fp16", "bf16"])
def test_the_same_model_and_job_give_the_same_bytes(wire_dtype: WireType) -> None:
    job = replace(JOB, wire_dtype=wire_dtype)
    assert encode_broadcast(model(), job) == encode_broadcast(model(), job)
