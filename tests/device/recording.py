"""A backend that trains nothing, and notes what it is asked to do. It shows what a backend must be."""

from collections.abc import Collection, Mapping

import numpy as np

from fedmef.device.backend import PLAIN, Descent, Step
from fedmef.methods.extrusion import Pull
from fedmef.sparsity.arrays import Array, Floats
from fedmef.sparsity.growth import GrowthScores
from fedmef.sparsity.model import State
from fedmef.sparsity.network import Network


class RecordingBackend:
    """The loss of its n-th step is n, and `||θ_low||₂` afterwards 10·n."""

    loss = "cross_entropy"

    def __init__(self, network: Network) -> None:
        self.network = network
        self.loaded: list[tuple[State, int]] = []
        self.steps: list[tuple[Array, Array, float, Pull | None]] = []
        self.grown: list[tuple[Array, Array, dict[str, int]]] = []
        self.shrunk = 0

    def load(self, state: Mapping[str, Array], seed: int = 0) -> None:
        self.loaded.append((dict(state), seed))

    def state(self, names: Collection[str] | None = None) -> State:
        state = self.loaded[-1][0]
        return state if names is None else {name: state[name] for name in names}

    def step(
        self, images: Array, labels: Array, rate: float, pull: Pull | None = None, descent: Descent = PLAIN
    ) -> Step:
        self.steps.append((images, labels, rate, pull))
        return Step(float(len(self.steps)), 10.0 * len(self.steps))

    def growth(self, images: Array, labels: Array, counts: Mapping[str, int]) -> dict[str, GrowthScores]:
        self.grown.append((images, labels, dict(counts)))
        pruned = np.zeros(0, dtype=np.int64)
        return {name: GrowthScores(pruned, np.zeros(0, dtype=np.float32)) for name in counts}

    def predict(self, images: Array) -> Floats:
        return np.zeros((len(images), self.network.classes))

    def shrink(self) -> None:
        self.shrunk += 1
