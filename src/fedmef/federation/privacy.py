"""Client-level differential privacy: clipped updates, Gaussian noise, and what they cost (DP-FedAvg).

Each device joins a round by a throw of its own (Poisson sampling, McMahan et al. 2018), so that the theorem
of the accountant is the one that applies. A round releases

    θ + (Σ_k clip(θ_k − θ, C) + N(0, z² C²)) / n        n = devices_per_round, whoever answered

Adding or removing one device moves the sum by at most C; ε is Opacus' Rényi accountant's for such neighbours.
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedmef.errors import UserError
from fedmef.experiment.randomness import numpy_generator, torch_generator
from fedmef.experiment.settings import Experiment
from fedmef.federation.aggregation import clip_share

if TYPE_CHECKING:
    from fedmef.methods.base import Method, Update

ORDERS = (*(1 + tenth / 10 for tenth in range(1, 100)), *range(12, 64), 80, 128, 256, 512)


def check_private(method: "Method") -> None:
    """Raise `UserError` for an experiment whose privacy could not be promised."""
    experiment = method.experiment
    if find_spec("opacus") is None:
        raise UserError("noise_multiplier needs the package opacus: pip install fedmef[privacy]")
    if experiment.clip_norm is None:
        raise UserError("noise_multiplier needs clip_norm: the noise is a multiple of it, such as 1.0")
    if experiment.aggregation != "mean":
        raise UserError(
            f"noise_multiplier and aggregation = '{experiment.aggregation}': leave one of them out"
        )
    if experiment.min_devices is not None:
        raise UserError("noise_multiplier and min_devices: a private round is never repeated; leave one out")
    if any(method.plan(number).adjusts for number in range(experiment.rounds)):
        raise UserError(
            f"noise_multiplier and method = '{experiment.method}': what devices send to adjust the masks has "
            "no noise; set adjust_until = 0"
        )


def sample_devices(experiment: Experiment, round_number: int) -> list[int]:
    """Each device joins with the probability `devices_per_round / devices`, whatever the others do."""
    thrown = numpy_generator(experiment.seed, "devices", round_number).random(experiment.devices)
    return [device for device, throw in enumerate(thrown) if throw < _sampling_rate(experiment)]


@torch.no_grad()
def absorb_privately(
    model: nn.Module,
    updates: Sequence["Update"],
    sent: Mapping[str, Tensor],
    experiment: Experiment,
    round_number: int,
) -> None:
    """Move the model by the clipped updates' noisy sum."""
    assert experiment.clip_norm is not None
    # Weights of single precision cannot keep a small bound: differences stay in double.
    shares = [clip_share(update, sent, experiment.clip_norm) for update in updates]
    generator = torch_generator(experiment.seed, "noise", round_number)
    deviation = experiment.noise_multiplier * experiment.clip_norm
    for name, tensor in sent.items():
        before = tensor.detach().cpu().double()
        noise = torch.randn(before.shape, generator=generator, dtype=torch.float64)
        total = deviation * noise
        for update, share in zip(updates, shares, strict=True):
            total += share * (update.weights[name].double() - before)
        after = before + total / experiment.devices_per_round
        tensor.copy_(after.clamp_(min=0) if name.endswith("running_var") else after)


def spent_epsilon(experiment: Experiment, rounds: int) -> float | None:
    """ε at the experiment's δ after so many rounds; None without noise."""
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


def _sampling_rate(experiment: Experiment) -> float:
    return experiment.devices_per_round / experiment.devices
