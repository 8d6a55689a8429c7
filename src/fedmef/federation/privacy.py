"""Client-level differential privacy: clipped updates, Gaussian noise, and what they cost (DP-FedAvg).

McMahan et al. 2018, https://arxiv.org/abs/1710.06963. Each device is sampled independently for a round
(Poisson sampling), so that the theorem of the accountant is the one that applies. A round releases

    θ + (Σ_k clip(θ_k − θ, C) + N(0, z² C²)) / n        n = devices_per_round, whoever answered

Adding or removing one device moves the sum by at most C; ε is Opacus' Rényi accountant's for such neighbours.
Noise and sampling come from the system's randomness: the one thing in a run that its seed does not decide,
unless `noise_source = "seed"` asks for it.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec

import numpy as np

from fedmef.errors import UserError
from fedmef.experiment.randomness import generator_for
from fedmef.experiment.settings import Experiment
from fedmef.federation.aggregation import clip_share
from fedmef.methods import find_method
from fedmef.sparsity.arrays import Array
from fedmef.sparsity.model import Model
from fedmef.wire.update import Update

ORDERS = (*(1 + tenth / 10 for tenth in range(1, 100)), *range(12, 64), 80, 128, 256, 512)


def check_private(experiment: Experiment) -> None:
    """Raise `UserError` for an experiment whose privacy could not be promised."""
    if find_spec("opacus") is None:
        raise UserError("noise_multiplier needs the package opacus: pip install 'fedmef[privacy]'")
    if experiment.clip_norm is None:
        raise UserError("noise_multiplier needs clip_norm: the noise is a multiple of it, such as 1.0")
    if experiment.aggregation != "mean":
        raise UserError(
            f"noise_multiplier and aggregation = '{experiment.aggregation}': leave one of them out"
        )
    if experiment.min_devices is not None:
        raise UserError("noise_multiplier and min_devices: a private round is never repeated; leave one out")
    method = find_method(experiment.method)()
    if any(method.job(experiment, number).adjusts for number in range(experiment.rounds)):
        raise UserError(
            f"noise_multiplier and method = '{experiment.method}': what devices send to adjust the masks has "
            "no noise; set adjust_until = 0"
        )


def sample_devices(experiment: Experiment, round_number: int) -> list[int]:
    """Each device joins with the probability `devices_per_round / devices`, whatever the others do."""
    if experiment.noise_source == "system":  # who knows which devices joined can tell more of them
        drawn = _system_uniform(experiment.devices)
    else:
        drawn = generator_for(experiment.seed, "devices", round_number).random(experiment.devices)
    return np.flatnonzero(drawn < _sampling_rate(experiment)).tolist()


def absorb_privately(
    model: Model,
    updates: Sequence[Update],
    sent: Mapping[str, Array],
    experiment: Experiment,
    round_number: int,
) -> None:
    """Move the model by the clipped updates' noisy sum."""
    assert experiment.clip_norm is not None
    # Weights of single precision cannot keep a small bound: differences stay in double.
    shares = [clip_share(update, sent, experiment.clip_norm) for update in updates]
    normal: Callable[[tuple[int, ...]], Array] = _system_normal
    if experiment.noise_source == "seed":
        normal = generator_for(experiment.seed, "noise", round_number).standard_normal
    deviation = experiment.noise_multiplier * experiment.clip_norm
    for name, array in sent.items():
        before = array.astype(np.float64)
        total = deviation * normal(before.shape)
        for update, share in zip(updates, shares, strict=True):
            total += share * (update.weights[name] - before)
        after = before + total / experiment.devices_per_round
        after = np.maximum(after, 0) if name.endswith("running_var") else after
        model.state[name] = after.astype(array.dtype)


def spent_epsilon(experiment: Experiment, rounds: int) -> float | None:
    """ε at the experiment's δ after this many rounds; None without noise."""
    if not experiment.noise_multiplier:
        return None
    from opacus.accountants.analysis import rdp  # noqa: PLC0415  (an extra that may be missing)

    spent = rdp.compute_rdp(
        q=_sampling_rate(experiment),
        noise_multiplier=experiment.noise_multiplier,
        steps=rounds,
        orders=ORDERS,
    )
    epsilon, _ = rdp.get_privacy_spent(orders=ORDERS, rdp=spent, delta=experiment.delta)
    return float(epsilon)


def _system_normal(shape: tuple[int, ...]) -> Array:
    """Standard normal numbers from the system's randomness, by Box and Muller: no state to find out."""
    radius, angle = _system_uniform(2 * math.prod(shape)).reshape(2, -1)
    # 1 − u is never 0.
    normal: Array = np.sqrt(-2 * np.log(1 - radius)) * np.cos(2 * np.pi * angle)
    return normal.reshape(shape)


def _system_uniform(count: int) -> Array:
    """Numbers of 53 bits in [0, 1)."""
    bits = np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(11)
    return bits * 2.0**-53


def _sampling_rate(experiment: Experiment) -> float:
    return experiment.devices_per_round / experiment.devices
