"""Everything random derives from (seed, purpose, round, device): the order of work never matters."""

import hashlib

import numpy as np


def derive_seed(seed: int, purpose: str, *keys: int | str) -> int:
    """A 63-bit seed that only these arguments decide."""
    text = "/".join([str(seed), purpose, *map(str, keys)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator_for(seed: int, purpose: str, *keys: int | str) -> np.random.Generator:
    """A generator of its own for one purpose."""
    return np.random.default_rng(derive_seed(seed, purpose, *keys))
