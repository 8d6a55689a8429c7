"""The torch backend: any network, on a CPU or a GPU. The reference for every other one."""

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from fedmef.device.backend import PLAIN, Descent, Step
from fedmef.errors import UserError
from fedmef.methods.extrusion import Pull
from fedmef.nn.batchnorm import frozen_statistics
from fedmef.nn.growth import growth_scores
from fedmef.nn.layers import sparse_layers
from fedmef.nn.loss import Loss, find_loss
from fedmef.nn.module import NetworkModule, load_state, normalize
from fedmef.sparsity.arrays import Array, Floats
from fedmef.sparsity.growth import GrowthScores
from fedmef.sparsity.model import State
from fedmef.sparsity.network import Network
from fedmef.wire.job import CROSS_ENTROPY


class TorchBackend:
    """A network as a PyTorch module.

    Args:
        network: what to execute.
        module: the network's own code, which one with opaque operations needs; others need none.
        accelerator: where tensors live: cpu, cuda, cuda:1 and so on.
        loss: what its steps minimise: cross_entropy, or module:function.
    """

    def __init__(
        self,
        network: Network,
        *,
        module: nn.Module | None = None,
        accelerator: str = "cpu",
        loss: str = CROSS_ENTROPY,
    ) -> None:
        self.network = network
        self.loss = loss
        check_accelerator(accelerator)
        self.accelerator = torch.device(accelerator)
        self._layout = torch.contiguous_format  # somebody's own code may call view() on what it gets
        if module is None:
            module = NetworkModule(network)
            self._layout = module.layout
        self.module = module.to(self.accelerator)
        self._layers = sparse_layers(self.module)
        self._random: Tensor | None = None  # of layers and losses that draw numbers; ours draw none
        self._velocities: dict[nn.Parameter, Tensor] = {}
        self._anchors: dict[nn.Parameter, Tensor] = {}

    def load(self, state: Mapping[str, Array], seed: int = 0) -> None:
        load_state(self.module, self.network, state)
        self._velocities.clear()
        self._anchors.clear()
        if self.network.opaque is not None or self.loss != CROSS_ENTROPY:
            self._random = torch.Generator().manual_seed(seed).get_state()

    def state(self, names: Collection[str] | None = None) -> State:
        tensors, wanted = self.module.state_dict(), self.network.arrays if names is None else names
        return {name: tensors[name].detach().cpu().numpy() for name in wanted}

    def step(
        self, images: Array, labels: Array, rate: float, pull: Pull | None = None, descent: Descent = PLAIN
    ) -> Step:
        with self._running(training=True):
            loss = self._loss(self.module(self.normalized(images)), self._tensor(labels))
            loss.backward()  # type: ignore[no-untyped-call]
            norm = self._descend(rate, pull, descent)
            return Step(float(loss.detach()), norm)

    def growth(self, images: Array, labels: Array, counts: Mapping[str, int]) -> dict[str, GrowthScores]:
        growing = growth_scores(self.module, counts)
        with self._running(training=True), frozen_statistics(self.module), growing as scores:
            logits = self.module(self.normalized(images))
            self._loss(logits, self._tensor(labels)).backward()  # type: ignore[no-untyped-call]
            self.module.zero_grad()
        return scores

    def predict(self, images: Array) -> Floats:
        with self._running(training=False), torch.no_grad():
            logits: Floats = self.module(self.normalized(images)).cpu().numpy()
            return logits

    def shrink(self) -> None:
        """Between steps PyTorch holds nothing but the module."""

    def normalized(self, images: Array) -> Tensor:
        """The module's input. Normalised where it is used: uint8 is a quarter of the traffic to a GPU."""
        return normalize(self._tensor(images), self.network.input, self._layout)

    @cached_property
    def _loss(self) -> Loss:
        """Found when it is first needed: whoever only predicts runs nobody's code."""
        return find_loss(self.loss)

    @torch.no_grad()
    def _descend(self, rate: float, pull: Pull | None, descent: Descent) -> float:
        """A step down the gradients, which are gone afterwards; returns the norm of the pulled weights."""
        pulled = self._pulled(pull) if pull is not None else []
        for values, marked in pulled:
            assert values.grad is not None
            assert pull is not None
            values.grad.index_add_(0, marked, values[marked], alpha=2 * pull.strength)
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                parameter.add_(self._direction(parameter, parameter.grad, descent), alpha=-rate)
                parameter.grad = None  # now, so that no gradient is alive during the next forward pass
        squares = sum(float(values[marked].double().square().sum()) for values, marked in pulled)
        return math.sqrt(squares)

    def _direction(self, parameter: nn.Parameter, gradient: Tensor, descent: Descent) -> Tensor:
        """What a step goes down: the gradient, and what else there is."""
        if descent.weight_decay:
            gradient = gradient.add(parameter, alpha=descent.weight_decay)
        if descent.proximal:
            if parameter not in self._anchors:
                self._anchors[parameter] = parameter.clone()
            gradient = gradient.add(parameter - self._anchors[parameter], alpha=descent.proximal)
        if not descent.momentum:
            return gradient
        velocity = self._velocities.get(parameter)
        velocity = gradient.clone() if velocity is None else velocity.mul_(descent.momentum).add_(gradient)
        self._velocities[parameter] = velocity
        return velocity

    def _pulled(self, pull: Pull) -> list[tuple[nn.Parameter, Tensor]]:
        return [(self._layers[name].values, self._tensor(marked)) for name, marked in pull.marked.items()]

    def _tensor(self, array: Array) -> Tensor:
        writable = np.require(array, requirements="W")  # a memory-mapped one is not, and PyTorch warns
        return torch.from_numpy(writable).to(self.accelerator)

    @contextmanager
    def _running(self, *, training: bool) -> Iterator[None]:
        """One thread: with more, sums are added up in another order, and bits differ."""
        if self.module.training != training:
            self.module.train(training)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            if self._random is None:
                yield
            else:
                with torch.random.fork_rng(devices=self._devices()):
                    torch.random.set_rng_state(self._random)
                    if self._devices():
                        torch.cuda.manual_seed(int(torch.randint(2**62, ())))
                    yield
                    self._random = torch.random.get_rng_state()
        finally:
            torch.set_num_threads(threads)

    def _devices(self) -> list[torch.device]:
        return [self.accelerator] if self.accelerator.type == "cuda" else []


def check_accelerator(name: str) -> None:
    """Raise `UserError` when this machine has no such place for tensors."""
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda"):
            raise RuntimeError
    except RuntimeError:
        raise UserError(f"accelerator = '{name}': must be cpu, cuda or cuda:N") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise UserError(f"accelerator = '{name}': this machine has {count} CUDA devices; use cpu")
