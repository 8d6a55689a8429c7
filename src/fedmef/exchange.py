"""What travels in a round: the broadcast that goes down and the update that comes up, as bytes.

Down goes the whole state of the model, masks included. Up come only floating-point tensors: a mask is the
server's own, and a device never repeats positions that the server already knows.
"""

from collections.abc import Mapping
from dataclasses import asdict

import torch
from torch import Tensor, nn

from fedmef.methods.base import Extras, Plan, Update
from fedmef.nn import GrowthScores
from fedmef.wire import MessageError, decode, encode


def encode_broadcast(state: Mapping[str, Tensor], plan: Plan) -> bytes:
    """The global model and what to do with it."""
    return encode(state, {"plan": asdict(plan)})


def decode_broadcast(message: bytes) -> tuple[dict[str, Tensor], Plan]:
    """The inverse of `encode_broadcast`."""
    state, header = decode(message)
    try:
        return state, Plan(**header["plan"])
    except (KeyError, TypeError) as error:
        raise MessageError(f"a broadcast without a plan: {error}") from error


def encode_update(
    device: int,
    samples: int,
    loss: float,
    model: nn.Module,
    extras: Extras,
    withheld: frozenset[str] = frozenset(),
) -> bytes:
    """A device's trained weights, but those withheld, and what its method sends beside them."""
    tensors = {
        f"weights/{name}": value
        for name, value in model.state_dict().items()
        if value.is_floating_point() and name not in withheld
    }
    for name, scores in extras.growth.items():
        tensors[f"growth/{name}/positions"] = scores.positions.to(torch.int32)
        tensors[f"growth/{name}/gradients"] = scores.gradients
    tensors |= {f"extra/{name}": value for name, value in extras.tensors.items()}
    # A loss that is not finite has no place in JSON; the weights will tell.
    return encode(tensors, {"device": device, "samples": samples, "loss": repr(loss)})


def decode_update(message: bytes) -> Update:
    """The inverse of `encode_update`, as far as the update goes."""
    tensors, header = decode(message)
    weights: dict[str, Tensor] = {}
    extras: dict[str, Tensor] = {}
    growth: dict[str, dict[str, Tensor]] = {}
    try:
        for key, value in tensors.items():
            kind, name = key.split("/", 1)
            if kind == "growth":
                layer, part = name.rsplit("/", 1)
                growth.setdefault(layer, {})[part] = value
            else:
                {"weights": weights, "extra": extras}[kind][name] = value
        scores = {
            name: GrowthScores(_positions(parts["positions"]), parts["gradients"])
            for name, parts in growth.items()
        }
        return Update(
            int(header["device"]),
            int(header["samples"]),
            float(header["loss"]),
            weights,
            Extras(scores, extras),
        )
    except (KeyError, ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise MessageError(f"not a device's update: {error}") from error


def _positions(sent: Tensor) -> Tensor:
    if sent.dtype != torch.int32:
        raise ValueError(f"positions are {sent.dtype}, not torch.int32")
    return sent.long()
