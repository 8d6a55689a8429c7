"""A device: bytes in, bytes out, and nothing of its own but its data."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedmef.data.digits import read_digits
from fedmef.device.backend import open_backend
from fedmef.device.device import Device
from fedmef.device.training import LocalTraining, Samples
from fedmef.errors import MessageError, NotHeldError, UserError
from fedmef.experiment.randomness import derive_seed
from fedmef.methods import Method
from fedmef.sparsity.model import Model, check_state
from fedmef.sparsity.network import Network
from fedmef.sparsity.operations import Opaque
from fedmef.wire.broadcast import encode_broadcast
from fedmef.wire.container import MESSAGE_VERSION, decode, encode
from fedmef.wire.job import Job
from fedmef.wire.store import Store
from fedmef.wire.update import Extras, Update, decode_update
from tests.device.recording import RecordingBackend
from tests.sparsity.networks import images, normalized_network, random_model

NETWORK = normalized_network()
JOB = Job(method="fedmef", round=3, seed=7, learning_rate=0.1, initial_rate=0.1, batch_size=16, extrusion=0.5)


def samples(count: int = 48) -> Samples:
    train = read_digits().train
    return Samples(train.images, train.labels, np.arange(count))


def model(seed: int = 0) -> Model:
    return random_model(NETWORK, 0.5, seed)


def trained(device: Device, job: Job = JOB, of: Model | None = None) -> Update:
    return decode_update(device.train(encode_broadcast(of or model(), job)), NETWORK)


def unopened(network: Network) -> RecordingBackend:
    """For devices that must notice something before they train."""
    pytest.fail(f"a backend was opened for {network.digest}")


# It needs nothing but its data.


def test_a_device_with_nothing_but_data_trains_a_round() -> None:
    device = Device(5, samples(), open_backend)
    update = trained(device)
    assert (update.device, update.samples) == (5, 48)
    assert np.isfinite(update.loss)
    assert update.weights.keys() == set(NETWORK.floats)
    assert update.extras == Extras()
    received = model()
    state = {**received.state, **update.weights}
    check_state(NETWORK, state)  # the same masks still fit
    changed = [name for name in NETWORK.floats if not np.array_equal(state[name], received.state[name])]
    assert changed == list(NETWORK.floats)


def test_training_makes_the_loss_smaller() -> None:
    device = Device(5, samples(), open_backend)
    job = replace(JOB, method="fedavg", local_epochs=1, learning_rate=0.05)
    current, losses = model(), []
    for number in range(6):
        update = trained(device, replace(job, round=number), current)
        current = Model(NETWORK, {**current.state, **update.weights})
        losses.append(update.loss)
    assert losses[-1] < 0.9 * losses[0]


def test_the_message_says_what_to_train_and_not_the_device() -> None:
    """One device, three rounds of three networks and methods."""
    device = Device(5, samples(), open_backend)
    for classes, method in ((10, "fedavg"), (11, "fedtiny"), (12, "fedmef")):
        network = normalized_network(classes)
        sent = random_model(network, 0.5)
        answer = device.train(encode_broadcast(sent, replace(JOB, method=method)))
        assert decode_update(answer, network).weights["classifier.weight"].shape == (classes, 8)


def test_an_adjusting_round_brings_growth_scores() -> None:
    update = trained(Device(5, samples(), open_backend), replace(JOB, adjustment_rate=0.25))
    assert update.extras.growth.keys() == {"second", "third"}
    for name, scores in update.extras.growth.items():
        assert scores.positions.size == 72  # a quarter of the half of 576
        assert not np.isin(scores.positions, model().positions(name)).any()
        assert np.isfinite(scores.gradients).all()


def test_the_same_message_gives_the_same_answer_whatever_came_before() -> None:
    message = encode_broadcast(model(), JOB)
    fresh, used = Device(5, samples(), open_backend), Device(5, samples(), open_backend)
    used.train(encode_broadcast(model(1), replace(JOB, round=9)))
    assert fresh.train(message) == used.train(message)
    assert fresh.train(message) != Device(6, samples(), open_backend).train(message)


def test_devices_that_share_a_backend_do_not_disturb_each_other() -> None:
    message, shared = encode_broadcast(model(), JOB), open_backend(NETWORK)
    alone = [Device(number, samples(), open_backend).train(message) for number in range(3)]
    together = [Device(number, samples(), lambda _: shared).train(message) for number in (2, 0, 1)]
    assert [together[1], together[2], together[0]] == alone


def test_memory_of_steps_is_given_back_before_the_answer_unless_the_backend_is_shared() -> None:
    for alone in (True, False):
        backend = RecordingBackend(NETWORK)
        Device(5, samples(), lambda _, one=backend: one, alone=alone).train(encode_broadcast(model(), JOB))  # type: ignore[misc]
        assert backend.shrunk == alone


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_the_answer_is_coded_as_the_job_says(dtype: str) -> None:
    job = replace(JOB, wire_dtype=dtype)  # type: ignore[arg-type]
    message = encode_broadcast(model(), job)
    arrays, _ = decode(Device(5, samples(), open_backend).train(message), MESSAGE_VERSION)
    assert (
        arrays["weights/second.values"].dtype
        == {"fp32": "float32", "fp16": "float16", "bf16": "uint16"}[dtype]
    )


def test_a_backend_is_seeded_by_seed_round_and_device() -> None:
    backends: list[RecordingBackend] = []

    def opened(network: Network) -> RecordingBackend:
        backends.append(RecordingBackend(network))
        return backends[-1]

    Device(5, samples(), opened).train(encode_broadcast(model(), JOB))
    ((_, seed),) = backends[0].loaded
    assert seed == derive_seed(7, "device", 3, 5)


def test_a_method_of_the_devices_own_can_be_found() -> None:
    class Mine(Method):
        def train(self, local: LocalTraining, job: Job) -> Extras:
            local.fit(0.5)
            return Extras(arrays={"note": np.array(42)})

        def withheld(self, network: Network) -> frozenset[str]:
            return frozenset({"second.values"})

    device = Device(5, samples(), RecordingBackend, find_method=lambda name: {"mine": Mine}[name])
    update = trained(device, replace(JOB, method="mine"))
    assert update.extras.arrays["note"].item() == 42
    assert update.weights.keys() == set(NETWORK.floats) - {"second.values"}


# What it holds between rounds.


def test_a_device_with_a_store_holds_the_network_and_the_masks(tmp_path: Path) -> None:
    device = Device(5, samples(), RecordingBackend, Store(tmp_path))
    device.train(encode_broadcast(model(), JOB))
    known = encode_broadcast(model(), JOB, known=model().masks(), knows_network=True)
    assert decode_update(device.train(known), NETWORK).device == 5


@pytest.mark.parametrize("stored", [True, False])
def test_a_device_that_does_not_hold_what_it_needs_says_so(tmp_path: Path, stored: bool) -> None:
    device = Device(5, samples(), unopened, Store(tmp_path) if stored else None)
    for message in (
        encode_broadcast(model(), JOB, knows_network=True),
        encode_broadcast(model(), JOB, known=model().masks()),
    ):
        with pytest.raises(NotHeldError):
            device.train(message)


# What it refuses.


@pytest.mark.parametrize("shape", [(1, 8, 9), (3, 8, 8), (1, 16, 16)])
def test_a_network_for_other_images_is_refused(shape: tuple[int, int, int]) -> None:
    other = Samples(np.zeros((4, *shape), dtype=np.uint8), np.zeros(4, dtype=np.int64), np.arange(4))
    device = Device(5, other, unopened)
    reason = (
        rf"device 5 has images of shape \[{shape[0]}, {shape[1]}, {shape[2]}\], the network takes \[1, 8, 8\]"
    )
    with pytest.raises(MessageError, match=reason):
        device.train(encode_broadcast(model(), JOB))


@pytest.mark.parametrize(
    ("labels", "indices", "problem"),
    [([0, 1, -1], [0, 1, 2], "beyond"), ([0, 1, 2], [], "no samples")],
)
def test_samples_that_cannot_be_trained_on_are_refused(
    labels: list[int], indices: list[int], problem: str
) -> None:
    given = samples(3)
    wrong = Samples(given.images, np.array(labels), np.array(indices, dtype=np.int64))
    with pytest.raises(MessageError, match=problem):
        Device(0, wrong, unopened).train(encode_broadcast(model(), JOB))


def test_labels_of_other_devices_do_not_matter() -> None:
    given = samples(3)
    shared = Samples(given.images[:3], np.array([0, 1, 99]), np.array([0, 1]))
    trained(Device(0, shared, open_backend))


def test_a_network_larger_than_the_device_takes_is_refused() -> None:
    weights = sum(layer.size for layer in model().network.layers.values())
    message = encode_broadcast(model(), JOB)
    Device(0, samples(), open_backend, most_weights=weights).train(message)
    with pytest.raises(MessageError, match="at most"):
        Device(0, samples(), unopened, most_weights=weights - 1).train(message)


def test_a_step_of_more_values_than_the_device_takes_is_refused() -> None:
    # An image of 64 pixels; five results of 8x64 values; 8 pooled, 8 flattened; 10 logits.
    values = 64 + 5 * 8 * 64 + 8 + 8 + 10
    message = encode_broadcast(model(), JOB)
    Device(0, samples(), open_backend, most_values=16 * values).train(message)
    with pytest.raises(MessageError, match=f"a step computes {16 * values:,} values: device 0 takes at most"):
        Device(0, samples(), unopened, most_values=16 * values - 1).train(message)


def test_no_batch_is_larger_than_what_the_device_has() -> None:
    values = 64 + 5 * 8 * 64 + 8 + 8 + 10
    large = encode_broadcast(model(), replace(JOB, batch_size=2**40))
    Device(0, samples(3), open_backend, most_values=3 * values).train(large)


def test_a_device_without_limits_takes_any_network() -> None:
    device = Device(0, samples(), open_backend, most_weights=None, most_values=None)
    assert trained(device).samples == 48


def test_a_network_with_too_few_classes_is_refused() -> None:
    few = random_model(normalized_network(classes=9))
    with pytest.raises(MessageError, match="device 5 has labels beyond the 9 classes"):
        Device(5, samples(), unopened).train(encode_broadcast(few, JOB))


@pytest.mark.parametrize("method", ["nothing", "os:system", "tests.device.test_device:Method", ""])
def test_a_server_cannot_make_a_device_import_anything(method: str) -> None:
    with pytest.raises(MessageError, match=f"unknown method '{method}'"):
        Device(5, samples(), unopened).train(encode_broadcast(model(), replace(JOB, method=method)))


@pytest.mark.parametrize("end", [0, 7, 100, -1])
def test_half_a_message_is_refused(end: int) -> None:
    with pytest.raises(MessageError):
        Device(5, samples(), unopened).train(encode_broadcast(model(), JOB)[:end])


@pytest.mark.parametrize("message", [b"", b"junk", encode({}, {}), encode({}, {}, MESSAGE_VERSION)])
def test_something_else_than_a_broadcast_is_refused(message: bytes) -> None:
    with pytest.raises(MessageError):
        Device(5, samples(), unopened).train(message)


def test_a_network_that_needs_its_own_code_is_refused_by_a_device_without_it() -> None:
    strange = Network(images(1), (Opaque(name="mine", inputs=("input",), description="MyNet", shape=(10,)),))
    with pytest.raises(UserError, match="needs its own PyTorch code: 'mine'"):
        Device(5, samples(), open_backend).train(encode_broadcast(Model(strange, {}), JOB))
