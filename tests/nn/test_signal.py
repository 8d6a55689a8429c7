"""NSConv keeps the signal: networks of all shapes learn, with one learning rate."""

import pytest

from tests.nn.zoo import ARCHITECTURES, constant_loss, look


@pytest.mark.parametrize("sparsity", [0.9, 0.95])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_learns_at_one_rate(name: str, sparsity: float) -> None:
    seen = look(name, sparsity)
    assert 0.3 <= seen.features <= 3
    assert seen.smallest_gradient > 0
    assert seen.largest_gradient < 1000
    assert seen.loss < constant_loss() / 2
