"""What the server makes of the devices' average: it takes it, or steps towards it.

The difference between the average and the model counts as a negative gradient Δ (Reddi et al. 2021, "Adaptive
federated optimization", https://arxiv.org/abs/2003.00295; FedAvgM: Hsu et al. 2019):

    momentum   m ← β m + Δ                θ ← θ + η m
    adam       m ← β m + (1 − β) Δ        θ ← θ + η m / (√v + τ)        v ← β₂ v + (1 − β₂) Δ²

Only weights are stepped; BatchNorm's statistics are averages and stay so. A moment belongs to a position: one
that is dropped takes its moments with it, and one that grows begins with none.
"""

from collections.abc import Mapping

import numpy as np

from fedmef.errors import UserError
from fedmef.experiment.settings import Experiment
from fedmef.sparsity.arrays import Array
from fedmef.sparsity.masks import active_positions
from fedmef.sparsity.model import Masks, Model, State

BETA_2, TAU = 0.99, 1e-3  # the paper's
DEFAULT_RATES = {"momentum": 1.0, "adam": 0.01}


class ServerOptimizer:
    """The server's own state between rounds: a checkpoint has it, in single precision, as it is used."""

    def __init__(self, experiment: Experiment, model: Model) -> None:
        self._kind = experiment.server_optimizer
        self._beta = experiment.server_momentum
        self._rate = experiment.server_rate or DEFAULT_RATES.get(self._kind, 1.0)
        self._moments: dict[str, Array] = {}
        if self._kind != "none":
            weights = [
                name
                for name, spec in model.network.arrays.items()
                if spec.role == "weight" and name not in model.network.frozen
            ]
            self._moments = {
                f"{moment}/{name}": np.zeros(model.state[name].shape, dtype=np.float32)
                for moment in (("first", "second") if self._kind == "adam" else ("first",))
                for name in weights
            }

    @property
    def used(self) -> bool:
        """Whether it does anything."""
        return bool(self._moments)

    def step(self, model: Model, before: Mapping[str, Array]) -> None:
        """The model holds the devices' average: go from what was before towards it."""
        for key in [key for key in self._moments if key.startswith("first/")]:
            name = key.removeprefix("first/")
            start = before[name].astype(np.float64)
            change = model.state[name] - start
            if self._kind == "momentum":
                first = self._kept(key, self._beta * self._moments[key].astype(np.float64) + change)
                stepped = start + self._rate * first
            else:
                other = f"second/{name}"
                first = self._kept(key, self._mixed(key, self._beta, change))
                second = self._kept(other, self._mixed(other, BETA_2, np.square(change)))
                stepped = start + self._rate * first / (np.sqrt(second) + TAU)
            model.state[name] = stepped.astype(before[name].dtype)

    def follow(self, model: Model, masks: Masks) -> None:
        """The model's masks are no longer these: every moment stays with its position."""
        for key in list(self._moments):
            layer = key.partition("/")[2].removesuffix(".values")
            if not key.endswith(".values") or layer not in masks:
                continue
            if np.array_equal(masks[layer], model.state[f"{layer}.mask"]):
                continue
            size = model.network.sparse_layers[layer].size
            dense = np.zeros(size, dtype=np.float32)
            dense[active_positions(masks[layer], size)] = self._moments[key]
            self._moments[key] = dense[model.positions(layer)]

    def state(self) -> State:
        """What a checkpoint must hold."""
        return dict(self._moments)

    def restore(self, state: Mapping[str, Array]) -> None:
        """The inverse of `state`, which may be anybody's; nothing at all says that it begins."""
        if not state:
            return
        if state.keys() != self._moments.keys():
            wrong = min(state.keys() ^ self._moments.keys())
            raise UserError(f"the run is damaged: its server's state has no '{wrong}', or should not have it")
        for key, array in state.items():
            expected = self._moments[key]
            if array.dtype != expected.dtype or array.shape != expected.shape or not np.isfinite(array).all():
                raise UserError(f"the run is damaged: its server's '{key}' does not fit its network")
        self._moments = dict(state)

    def _mixed(self, key: str, beta: float, change: Array) -> Array:
        mixed: Array = beta * self._moments[key].astype(np.float64) + (1 - beta) * change
        return mixed

    def _kept(self, key: str, moment: Array) -> Array:
        """Rounded as a checkpoint keeps it, and used so: a resumed run has the same bits."""
        self._moments[key] = moment.astype(np.float32)
        return self._moments[key].astype(np.float64)
