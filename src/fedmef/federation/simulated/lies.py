"""Injected liars: their answers are well formed and not true; for tests of what a server believes."""

from dataclasses import replace

import numpy as np

from fedmef.experiment.faults import LIES
from fedmef.sparsity.growth import GrowthScores
from fedmef.wire.broadcast import decode_broadcast
from fedmef.wire.container import MAXIMUM_BYTES
from fedmef.wire.files import read_bounded, write_atomically
from fedmef.wire.store import Store
from fedmef.wire.update import Update, decode_update, encode_update

MORE_SAMPLES = 1000  # times as many
FILLED = {"zeros": 0.0, "huge": 1e30, "largest": 3.4e38}
FORGED = 1e30


def told(kind: str, device: int, message: bytes, answer: bytes, store: Store) -> bytes:
    """What a liar of this kind makes of its answer to a message."""
    assert kind in LIES
    if kind == "replay":
        return _first_answer(device, answer, store)
    model, _ = decode_broadcast(message, store)
    return encode_update(_false(kind, decode_update(answer, model.network)), model.network)


def _false(kind: str, update: Update) -> Update:
    if kind == "impostor":
        return replace(update, device=update.device + 1)
    if kind == "forge":
        growth = {
            name: GrowthScores(scores.positions, np.full_like(scores.gradients, FORGED))
            for name, scores in update.extras.growth.items()
        }
        return replace(update, extras=replace(update.extras, growth=growth))
    weights = {name: np.full_like(array, FILLED[kind]) for name, array in update.weights.items()}
    samples = update.samples * (MORE_SAMPLES if kind == "zeros" else 1)
    return replace(update, weights=weights, samples=samples)


def _first_answer(device: int, answer: bytes, store: Store) -> bytes:
    """The first one ever, whichever process gave it: honest then, and a replay from then on."""
    file = store.folder / f"first-answer-{device}"
    if not file.exists():
        store.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(file, answer)
    return read_bounded(file, MAXIMUM_BYTES)
