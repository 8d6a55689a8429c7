"""Everything random derives from (seed, purpose, round, device): the order of work never matters."""

import hashlib

import numpy as np
import torch


def derive_seed(seed: int, purpose: str, *keys: int | str) -> int:
    """A 63-bit seed that only these arguments decide."""
    text = "/".join([str(seed), purpose, *map(str, keys)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def torch_generator(seed: int, purpose: str, *keys: int | str) -> torch.Generator:
    """A CPU generator of its own for one purpose."""
    return torch.Generator().manual_seed(derive_seed(seed, purpose, *keys))


def numpy_generator(seed: int, purpose: str, *keys: int | str) -> np.random.Generator:
    """The same for numpy."""
    return np.random.default_rng(derive_seed(seed, purpose, *keys))
