"""Every test, and every example of hypothesis, starts with the same PyTorch generator."""

from typing import Any

import hypothesis
import pytest
import torch


class TorchRandom:
    """PyTorch's global generator, as hypothesis wants to see it."""

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def getstate(self) -> Any:
        return torch.get_rng_state()

    def setstate(self, state: Any) -> None:
        torch.set_rng_state(state)


TORCH_RANDOM = TorchRandom()
hypothesis.register_random(TORCH_RANDOM)


@pytest.fixture(autouse=True)
def _same_start() -> None:
    torch.manual_seed(0)
