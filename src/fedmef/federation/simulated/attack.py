"""Injected attackers: devices that send their update multiplied by a factor; for tests of the aggregation."""

import math
from dataclasses import replace

import numpy as np

from fedmef.experiment.randomness import generator_for
from fedmef.sparsity.arrays import Array
from fedmef.sparsity.masks import active_positions
from fedmef.sparsity.model import Model
from fedmef.wire.broadcast import decode_broadcast
from fedmef.wire.store import Store
from fedmef.wire.update import Update, decode_update, encode_update


def attackers(share: float, devices: int, seed: int) -> frozenset[int]:
    """The devices that attack, in every round the same."""
    count = math.floor(share * devices + 1e-6)
    chosen = generator_for(seed, "attackers").choice(devices, count, replace=False)
    return frozenset(chosen.tolist())


def scale_update(message: bytes, answer: bytes, factor: float, store: Store) -> bytes:
    """The answer with what training changed, from the model in the message, multiplied by a factor.

    Of trained weights only: a scaled variance would be negative, and give the attacker away.
    """
    model, job = decode_broadcast(message, store)
    update = decode_update(answer, model.network)
    weights = dict(update.weights)
    for name, after in update.weights.items():
        if model.network.arrays[name].role == "weight":
            before = _before(model, update, name)
            weights[name] = before + np.float32(factor) * (after - before)
    scaled = replace(update, weights=weights)
    return encode_update(scaled, model.network, scheme=job.wire_scheme, wire_dtype=job.wire_dtype)


def _before(model: Model, update: Update, name: str) -> Array:
    """An array as it was sent; a layer that changed its mask had 0 where it had no weight."""
    layer = name.removesuffix(".values")
    if layer not in update.extras.masks or not name.endswith(".values"):
        return model.state[name]
    size = model.network.sparse_layers[layer].size
    dense = np.zeros(size, dtype=model.state[name].dtype)
    dense[model.positions(layer)] = model.values(layer)
    return dense[active_positions(update.extras.masks[layer], size)]
