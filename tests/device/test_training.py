"""Local training, as a method's device half sees it."""

from dataclasses import replace

import numpy as np
import pytest

from fedmef.device.backend import Backend, Step
from fedmef.device.training import LocalTraining, Samples
from fedmef.methods.extrusion import Pull
from fedmef.sparsity.arrays import Array
from fedmef.wire.job import Job, LeftOver
from tests.device.recording import RecordingBackend
from tests.sparsity.networks import normalized_network, random_model, same_state

NETWORK = normalized_network()
JOB = Job(method="fedavg", round=3, seed=7, learning_rate=0.1, initial_rate=0.5, batch_size=4)
# The label of an image is its number: of 12, these ten are the device's.
IMAGES = np.repeat(np.arange(12, dtype=np.uint8), 64).reshape(12, 1, 8, 8)
OWN = np.array([0, 1, 2, 3, 4, 6, 7, 8, 9, 11])
SAMPLES = Samples(IMAGES, np.arange(12), OWN)


def local(job: Job = JOB, device: int = 5) -> tuple[LocalTraining, RecordingBackend]:
    recording = RecordingBackend(NETWORK)
    backend: Backend = recording
    return LocalTraining(device, backend, SAMPLES, job), recording


def labels_of(backend: RecordingBackend) -> list[int]:
    return [int(label) for _, labels, _, _ in backend.steps for label in labels]


def test_a_device_has_as_many_samples_as_are_its_own() -> None:
    assert len(SAMPLES) == 10


def test_a_layer_is_the_model_with_its_arrays_alone() -> None:
    training, backend = local()
    model = random_model(NETWORK, 0.5)
    backend.load(model.state)
    layer = training.layer("second")
    assert layer.state.keys() == {"second.mask", "second.values"}
    np.testing.assert_array_equal(layer.positions("second"), model.positions("second"))


def test_steps_are_rounded_up() -> None:
    training, _ = local()
    assert [training.steps(epochs) for epochs in (0, 0.1, 1 / 3, 0.5, 1, 2, 2.5)] == [0, 1, 1, 2, 3, 6, 8]


def test_an_epoch_is_every_own_sample_once_and_no_other() -> None:
    training, backend = local()
    training.fit(1)
    assert [len(labels) for _, labels, _, _ in backend.steps] == [4, 3, 3]
    assert sorted(labels_of(backend)) == OWN.tolist()
    for images, labels, _, _ in backend.steps:
        assert (images[:, 0, 0, 0] == labels).all()


def test_the_job_says_what_becomes_of_samples_beyond_full_batches() -> None:
    def sizes(left_over: LeftOver) -> list[int]:
        training, backend = local(replace(JOB, left_over=left_over))
        training.fit(2)
        assert training.steps(2) == len(backend.steps)
        return [len(labels) for _, labels, _, _ in backend.steps]

    assert sizes("even") == [4, 3, 3] * 2
    assert sizes("drop") == [4, 4] * 2
    assert sizes("keep") == [4, 4, 2] * 2


def test_epochs_are_shuffled_anew() -> None:
    training, backend = local()
    training.fit(2)
    first, second = labels_of(backend)[:10], labels_of(backend)[10:]
    assert sorted(first) == sorted(second) == OWN.tolist()
    assert first != second


def test_parts_of_an_epoch_continue_where_the_last_one_stopped() -> None:
    whole, halves = local(), local()
    whole[0].fit(2)
    for _ in range(4):
        halves[0].fit(0.5)
    assert labels_of(halves[1]) == labels_of(whole[1])
    assert len(halves[1].steps) == 6


def test_the_rate_is_the_jobs_and_nothing_is_pulled() -> None:
    training, backend = local()
    training.fit(1)
    assert [(rate, pull) for _, _, rate, pull in backend.steps] == [(0.1, None)] * 3


def test_a_schedule_is_asked_before_every_step_and_told_of_the_one_before() -> None:
    training, backend = local()
    asked: list[tuple[int, Step | None]] = []
    pull = Pull({"second": np.array([1, 2])}, 0.5)

    def schedule(number: int, before: Step | None) -> tuple[float, Pull | None]:
        asked.append((number, before))
        return number / 10, pull

    training.fit(1, schedule=schedule)
    assert asked == [(0, None), (1, Step(1.0, 10.0)), (2, Step(2.0, 20.0))]
    assert [(rate, given) for _, _, rate, given in backend.steps] == [(0.0, pull), (0.1, pull), (0.2, pull)]


def test_the_mean_loss_is_that_of_all_steps() -> None:
    training, _ = local()
    training.fit(1)
    assert training.mean_loss() == pytest.approx((1 + 2 + 3) / 3)
    training.fit(1)
    assert training.mean_loss() == pytest.approx(3.5)


def test_growth_scores_are_those_of_a_fresh_full_batch() -> None:
    training, backend = local()
    training.fit(1)
    training.growth_scores({"second": 7})
    ((images, labels, counts),) = backend.grown
    assert len(labels) == 4  # although the last batch of the epoch has three
    assert set(labels.tolist()) <= set(OWN.tolist())
    assert len(set(labels.tolist())) == 4
    assert (images[:, 0, 0, 0] == labels).all()
    assert counts == {"second": 7}


def test_growth_scores_of_a_device_with_few_samples_are_those_of_all_of_them() -> None:
    training, backend = local(replace(JOB, batch_size=99))
    training.growth_scores({"second": 7})
    ((_, labels, _),) = backend.grown
    assert sorted(labels.tolist()) == OWN.tolist()


def test_growth_scores_depend_on_seed_round_and_device_only() -> None:
    def chosen(job: Job, device: int) -> list[int]:
        training, backend = local(job, device)
        training.fit(0.5)
        training.growth_scores({"second": 7})
        return [int(label) for label in backend.grown[0][1]]

    assert chosen(JOB, 5) == chosen(replace(JOB, learning_rate=9.0, attempt=2), 5)
    others = [(JOB, 6), (replace(JOB, round=4), 5), (replace(JOB, seed=8), 5)]
    assert all(chosen(*other) != chosen(JOB, 5) for other in others)


def test_growth_scores_in_an_epoch_change_nothing_of_what_is_left_of_it() -> None:
    training, backend = local()
    training.fit(0.5)
    training.growth_scores({"second": 7})
    training.fit(0.5)
    assert sorted(labels_of(backend)) == OWN.tolist()


def test_the_model_is_what_the_backend_holds() -> None:
    training, backend = local()
    model = random_model(NETWORK)
    backend.load(model.state)
    assert training.model.network == NETWORK
    assert same_state(training.model.state, model.state)
    other = random_model(NETWORK, seed=1)
    training.replace(other)
    assert same_state(training.model.state, other.state)


@pytest.mark.parametrize(
    ("job", "device", "same"),
    [
        (JOB, 5, True),
        (replace(JOB, method="other", learning_rate=9.0, attempt=2), 5, True),
        (JOB, 6, False),
        (replace(JOB, round=4), 5, False),
        (replace(JOB, seed=8), 5, False),
    ],
)
def test_the_order_depends_on_seed_round_and_device_only(job: Job, device: int, same: bool) -> None:
    orders = []
    for training, backend in (local(), local(job, device)):
        training.fit(2)
        orders.append(labels_of(backend))
    assert (orders[0] == orders[1]) is same


def test_images_are_augmented_when_the_job_says_so() -> None:
    def pixels(job: Job) -> list[Array]:
        training, backend = local(job)
        training.fit(1)
        return [images for images, _, _, _ in backend.steps]

    plain, augmented = pixels(JOB), pixels(replace(JOB, augment=True))
    assert all(len(np.unique(image)) == 1 for image in np.concatenate(plain))
    assert any(len(np.unique(image)) == 2 for image in np.concatenate(augmented))  # zeros come in


def test_a_replaced_model_draws_numbers_of_its_own_on_every_device_and_in_every_round() -> None:
    """For layers such as dropout."""
    seeds = set()
    for job, device in ((JOB, 5), (JOB, 6), (replace(JOB, round=4), 5), (replace(JOB, seed=8), 5)):
        training, backend = local(job, device)
        training.replace(random_model(NETWORK))
        seeds.add(backend.loaded[-1][1])
    assert len(seeds) == 4
