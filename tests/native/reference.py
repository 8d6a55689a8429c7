"""What PyTorch computes in double precision, given which elements the native backend kept and let pass.

An element within rounding of a threshold may fall on either side of it, and one that does moves a gradient by
more than all rounding together. So both sides use the same bits: of pruned inputs, and of ReLUs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedmef.device.native_backend import NativeBackend
from fedmef.nn import convolution
from fedmef.nn.bits import mask_from_positions
from fedmef.nn.cache import PrunedActivation
from fedmef.nn.convolution import CachePolicy
from fedmef.nn.growth import growth_scores
from fedmef.nn.layout import in_memory_order, is_channels_last
from fedmef.nn.module import NetworkModule, load_state
from fedmef.sparsity.arrays import Array, Bits
from fedmef.sparsity.growth import GrowthScores
from fedmef.sparsity.network import Network
from fedmef.sparsity.operations import Operation, ReLU


@dataclass(frozen=True)
class Computed:
    """What one pass in training mode gave."""

    loss: float
    gradients: dict[str, Array]
    statistics: dict[str, Array]
    scores: dict[str, GrowthScores]


def compute(
    network: Network,
    state: Mapping[str, Array],
    images: Array,
    labels: Array,
    bits: Mapping[str, Bits],
    counts: Mapping[str, int] | None = None,
    dtype: torch.dtype = torch.float64,
) -> Computed:
    """The loss, all gradients, BatchNorm's statistics afterwards, and growth scores if `counts` are given."""
    module = NetworkModule(network)
    load_state(module, network, state)
    module.to(dtype).train()
    current = [""]  # the operation that runs
    module._steps = [(step, _observed(step, run, bits, current)) for step, run in module._steps]
    pixels = torch.from_numpy(network.input.normalize(images)).to(dtype)
    with (
        patch.object(convolution, "_prune_once", _keeping(bits, current)),
        growth_scores(module, counts or {}) as scores,
    ):
        loss = F.cross_entropy(module(pixels), torch.from_numpy(labels))
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
    gradients = {
        name: parameter.grad.numpy()
        for name, parameter in module.named_parameters()
        if parameter.grad is not None and parameter.numel()
    }
    statistics = {name: value.numpy() for name, value in module.named_buffers() if "running" in name}
    return Computed(float(loss.detach()), gradients, statistics, scores)


def assert_step_agrees(
    backend: NativeBackend, state: Mapping[str, Array], images: Array, labels: Array, noise: float = 0
) -> None:
    """A native step is what PyTorch computes: loss to 1e-5, gradients to 1e-4 of each array's norm.

    A gradient that is 0 but for rounding, as that of a bias in front of BatchNorm, is held to 2e-6 of the
    largest.
    Random networks divide by small numbers as well: there, `noise` times what PyTorch errs in single
    precision is allowed.
    """
    backend.load(state)
    step = backend.step(images, labels, 0.1)
    batch = images, labels, backend.bits()
    expected = compute(backend.network, state, *batch)
    single = compute(backend.network, state, *batch, dtype=torch.float32) if noise else expected
    usual = noise * abs(single.loss - expected.loss)
    assert abs(step.loss - expected.loss) <= 1e-5 * max(1, expected.loss) + usual
    found = backend.gradients()
    assert found.keys() == expected.gradients.keys()
    largest = max((np.linalg.norm(gradient) for gradient in expected.gradients.values()), default=0.0)
    for name, gradient in expected.gradients.items():
        error = np.linalg.norm((found[name] - gradient).ravel())
        usual = noise * float(np.linalg.norm((single.gradients[name] - gradient).ravel()))
        assert error <= 1e-4 * np.linalg.norm(gradient) + 2e-6 * largest + usual, f"{name}: {error:.2e}"
    after = backend.state()
    for name, value in expected.statistics.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


def _observed(
    step: Operation, run: Callable[..., Tensor], bits: Mapping[str, Bits], current: list[str]
) -> Callable[..., Tensor]:
    if isinstance(step, ReLU) and step.name in bits:
        return _passing(bits[step.name], step.upper)

    def observed(*inputs: Tensor) -> Tensor:
        current[0] = step.name
        return run(*inputs)

    return observed


def _passing(bits: Bits, upper: float | None) -> Callable[[Tensor], Tensor]:
    """A ReLU whose gradient passes where the bits say."""
    passes = torch.from_numpy(bits.copy())

    def run(values: Tensor) -> Tensor:
        through = values * passes
        return through + (values.clamp(min=0, max=upper) - through).detach()

    return run


def _keeping(bits: Mapping[str, Bits], current: list[str]) -> Callable[..., PrunedActivation]:
    """What keeps the elements that the bits of the current operation name."""
    usual = convolution._prune_once

    def prune_once(source: Tensor, ordered: Tensor, cache: CachePolicy) -> PrunedActivation:
        if current[0] not in bits:  # nothing depends on it
            return usual(source, ordered, cache)
        last = is_channels_last(source)
        layout = torch.channels_last if last else torch.contiguous_format
        kept = torch.from_numpy(bits[current[0]].reshape(tuple(source.shape)).copy())
        positions = (
            in_memory_order(kept.contiguous(memory_format=layout), last).reshape(-1).nonzero().squeeze(1)
        )
        values = ordered.reshape(-1)[positions]
        if cache.dtype is not None:
            values = values.to(cache.dtype)
        return PrunedActivation(mask_from_positions(positions, ordered.numel()), values)

    return prune_once
