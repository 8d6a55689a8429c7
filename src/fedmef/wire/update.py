"""The update: a device's answer to a job, as data and as bytes.

Up come only floating-point arrays: a mask is the server's own, and a device never repeats positions that the
server already knows. Whoever decodes has the network, which says what to expect.
"""

from dataclasses import dataclass, field

import numpy as np

from fedmef.errors import FedmefError, MessageError
from fedmef.sparsity.arrays import Array, Bytes
from fedmef.sparsity.growth import GrowthScores
from fedmef.sparsity.network import Network
from fedmef.wire.checksum import UNSET
from fedmef.wire.container import MESSAGE_VERSION, Header, decode, encode
from fedmef.wire.floats import WireType, from_wire, to_wire
from fedmef.wire.schemes import Rule
from fedmef.wire.sparse import decode_indices, decode_mask, encode_indices, encode_mask


@dataclass(frozen=True)
class Extras:
    """What a method sends up as well as the trained weights.

    Attributes:
        growth: growth scores of sparse layers.
        arrays: anything else, sent as it is.
        masks: packed masks of sparse layers, where they are not those that the server has sent.
    """

    growth: dict[str, GrowthScores] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)
    masks: dict[str, Bytes] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Update:
    """A device's answer.

    Attributes:
        samples: how many it has trained on.
        loss: mean training loss of its steps.
        weights: floating-point arrays of the network's state, as trained.
        round: the round that it was asked for.
        answers: the checksum of the message that it answers, and so the model that it was trained from.
    """

    device: int
    samples: int
    loss: float
    weights: dict[str, Array]
    extras: Extras
    round: int = 0
    answers: str = ""


def encode_update(
    update: Update, network: Network, *, scheme: Rule = "auto", wire_dtype: WireType = "fp32"
) -> bytes:
    """An update as bytes.

    Only weights are rounded to the wire's type: nobody knows the range of gradients and of a method's extras.
    """
    layers, extras = network.sparse_layers, update.extras
    arrays = {f"weights/{name}": to_wire(name, value, wire_dtype) for name, value in update.weights.items()}
    if unknown := (extras.growth.keys() | extras.masks.keys()) - layers.keys():
        raise FedmefError(f"the method sends positions of {min(unknown)}, which is no sparse layer")
    for name, scores in extras.growth.items():
        if (np.diff(scores.positions) <= 0).any():
            raise FedmefError(f"the growth positions of {name} are not ascending and distinct")
        layer = layers[name]
        # Their number changes from round to round, and with it the scheme that is smallest.
        code = encode_indices(
            scores.positions.astype(np.int64, copy=False), layer.filters, layer.filter_size, "auto"
        )
        arrays[f"positions/{name}"] = code
        arrays[f"gradients/{name}"] = scores.gradients
    for name, mask in extras.masks.items():
        layer = layers[name]
        arrays[f"masks/{name}"] = encode_mask(mask, layer.filters, layer.filter_size, scheme)
    arrays |= {f"extra/{name}": value for name, value in extras.arrays.items()}
    # A loss that is not finite has no place in JSON; the weights will tell.
    header = {
        "device": update.device,
        "samples": update.samples,
        "loss": repr(float(update.loss)),
        "round": update.round,
        "answers": update.answers,
    }
    return encode(arrays, header, MESSAGE_VERSION)


def decode_update(message: bytes, network: Network) -> Update:
    """The inverse of `encode_update`, for the network that was sent; raises `MessageError`."""
    arrays, header = decode(message, MESSAGE_VERSION)
    kinds: dict[str, dict[str, Array]] = {
        kind: {} for kind in ("weights", "positions", "gradients", "masks", "extra")
    }
    for key, value in arrays.items():
        kind, _, name = key.partition("/")
        if kind not in kinds:
            raise MessageError(f"an update has no {key}")
        kinds[kind][name] = value
    layers = network.sparse_layers
    if unknown := kinds["weights"].keys() - set(network.floats):
        raise MessageError(f"the model has no {min(unknown)}")
    if unknown := (kinds["positions"].keys() | kinds["masks"].keys()) - layers.keys():
        raise MessageError(f"the model has no sparse layer {min(unknown)}")
    if kinds["positions"].keys() != kinds["gradients"].keys():
        raise MessageError("growth positions without gradients, or the other way round")
    weights = {
        name: from_wire(name, value, network.arrays[name].dtype) for name, value in kinds["weights"].items()
    }
    growth = {
        name: GrowthScores(
            decode_indices(code, layers[name].filters, layers[name].filter_size),
            from_wire(f"gradients/{name}", kinds["gradients"][name], layers[name].dtype),
        )
        for name, code in kinds["positions"].items()
    }
    masks = {
        name: decode_mask(code, layers[name].filters, layers[name].filter_size)
        for name, code in kinds["masks"].items()
    }
    return Update(
        device=_read_count(header, "device"),
        samples=_read_count(header, "samples"),
        loss=_read_loss(header),
        weights=weights,
        extras=Extras(growth, kinds["extra"], masks),
        round=_read_count(header, "round"),
        answers=_read_checksum(header),
    )


def _read_count(header: Header, name: str) -> int:
    count = header.get(name)
    if type(count) is not int or not 0 <= count < 2**48:
        raise MessageError(f"not a device's update: its {name} is no number")
    return count


def _read_checksum(header: Header) -> str:
    checksum = header.get("answers")
    if not isinstance(checksum, str) or len(checksum) not in (0, len(UNSET)):
        raise MessageError("not a device's update: it does not say which message it answers")
    return checksum


def _read_loss(header: Header) -> float:
    try:
        return float(str(header["loss"]))
    except (KeyError, ValueError) as error:
        raise MessageError(f"not a device's update: {error}") from error
