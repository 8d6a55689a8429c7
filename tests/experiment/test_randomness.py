"""Everything random derives from what it is for."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmef.experiment.randomness import derive_seed, generator_for

keys = st.tuples(
    st.integers(0, 2**53), st.sampled_from(["batches", "masks"]), st.integers(0, 99), st.integers(0, 99)
)


def test_seeds_never_change_from_version_to_version() -> None:
    """Otherwise nobody could repeat what was published."""
    assert derive_seed(0, "batches", 3, 7) == 7805848622593693483
    assert generator_for(0, "batches", 3, 7).integers(0, 100, 5).tolist() == [58, 88, 69, 95, 57]


@given(one=keys, other=keys)
@settings(deadline=None)
def test_a_seed_depends_on_all_that_is_given_and_on_nothing_else(
    one: tuple[int, str, int, int], other: tuple[int, str, int, int]
) -> None:
    assert (derive_seed(*one) == derive_seed(*other)) == (one == other)
    assert 0 <= derive_seed(*one) < 2**63


def test_keys_cannot_run_into_one_another() -> None:
    assert derive_seed(1, "a", 11) != derive_seed(1, "a", 1, 1)
    assert derive_seed(1, "a", 1, 11) != derive_seed(1, "a", 11, 1)


def test_the_order_of_work_never_matters() -> None:
    first, second = generator_for(0, "batches", 1), generator_for(0, "batches", 2)
    mixed = [first.random(), second.random(), first.random()]
    alone = generator_for(0, "batches", 1)
    assert [mixed[0], mixed[2]] == [alone.random(), alone.random()]
    assert isinstance(alone, np.random.Generator)
