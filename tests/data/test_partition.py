import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmef.data import dirichlet_partition, iid_partition, natural_partition
from fedmef.errors import UserError
from fedmef.sparsity.arrays import Array, Integers

LABELS = np.arange(1000) % 10


def assert_exact_cover(parts: list[Integers], samples: int) -> None:
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(samples))
    for part in parts:
        assert len(part) > 0
        assert part.dtype == np.int64
        assert np.array_equal(part, np.sort(part))


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    share=st.floats(0, 1),
    alpha=st.floats(1e-3, 1e3),
    seed=st.integers(0, 2**31),
)
def test_a_dirichlet_partition_covers_exactly_and_leaves_no_device_empty(
    labels: list[int], share: float, alpha: float, seed: int
) -> None:
    devices = max(1, round(share * len(labels)))
    parts = dirichlet_partition(np.array(labels), devices, alpha, seed)
    assert len(parts) == devices
    assert_exact_cover(parts, len(labels))


@given(samples=st.integers(1, 60), share=st.floats(0, 1), seed=st.integers(0, 2**31))
def test_an_iid_partition_covers_exactly_and_evenly(samples: int, share: float, seed: int) -> None:
    devices = max(1, round(share * samples))
    parts = iid_partition(np.zeros(samples, dtype=np.int64), devices, seed)
    assert_exact_cover(parts, samples)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("alpha", [5e-324, 1e-3, 1e300])
def test_extreme_alphas_still_cover(alpha: float) -> None:
    assert_exact_cover(dirichlet_partition(LABELS, 30, alpha, seed=0), 1000)


def test_a_small_alpha_gives_each_class_to_about_one_device() -> None:
    parts = dirichlet_partition(LABELS, 5, 1e-3, seed=0)
    holders = [sum(bool((LABELS[part] == label).sum() > 5) for part in parts) for label in range(10)]
    assert sum(holders) <= 12


def test_a_large_alpha_is_nearly_even() -> None:
    parts = dirichlet_partition(LABELS, 5, 1e6, seed=0)
    for part in parts:
        assert (np.abs(np.bincount(LABELS[part], minlength=10) - 20) <= 1).all()


def test_the_seed_alone_decides() -> None:
    def flat(seed: int) -> list[list[int]]:
        return [part.tolist() for part in dirichlet_partition(LABELS, 7, 0.5, seed)]

    assert flat(1) == flat(1)
    assert flat(1) != flat(2)
    assert iid_partition(LABELS, 7, 1)[0].tolist() != iid_partition(LABELS, 7, 2)[0].tolist()


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_an_impossible_alpha_is_refused_by_name(alpha: float) -> None:
    with pytest.raises(UserError, match=rf"alpha = {alpha}: it must be a positive number"):
        dirichlet_partition(LABELS, 5, alpha, seed=0)


@pytest.mark.parametrize("devices", [0, -3, 1001])
def test_an_impossible_number_of_devices_is_refused(devices: int) -> None:
    with pytest.raises(UserError, match=rf"devices = {devices}: it must be in 1\.\.1000"):
        dirichlet_partition(LABELS, devices, 0.5, seed=0)
    with pytest.raises(UserError, match=rf"devices = {devices}"):
        iid_partition(LABELS, devices, seed=0)


@pytest.mark.parametrize(
    "users", [np.array([7, 3, 7, 9, 3, 7]), np.array(["bo", "al", "bo", "cy", "al", "bo"])]
)
def test_a_natural_partition_gives_each_user_their_own_in_sorted_order(users: Array) -> None:
    parts = natural_partition(users)
    assert [part.tolist() for part in parts] == [[1, 4], [0, 2, 5], [3]]
