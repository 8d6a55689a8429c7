"""What travels in a round: the broadcast that goes down and the update that comes up, as bytes.

Down go the values of the model, and its masks as far as a device does not hold them: all of them, or what has
changed. Up come only floating-point tensors: a mask is the server's own, and a device never repeats positions
that the server already knows. Masks and positions are coded (`fedmef.wire.sparse`); whoever decodes has the
same model, which says what to expect.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import asdict

import torch
from torch import Tensor, nn

from fedmef.errors import FedmefError
from fedmef.methods.base import Extras, Plan, Update
from fedmef.nn import GrowthScores, SparseConv2d, sparse_layers
from fedmef.sparsity import count_bits
from fedmef.wire import Header, MaskMemory, MaskMissingError, MessageError, Rule, decode, encode, mask_version
from fedmef.wire.container import MESSAGE_VERSION
from fedmef.wire.floats import from_wire, to_wire
from fedmef.wire.sparse import (
    decode_indices,
    decode_mask,
    decode_sparse,
    encode_indices,
    encode_mask,
    encode_sparse,
)

Masks = Mapping[str, Tensor]


def encode_broadcast(
    model: nn.Module,
    plan: Plan,
    *,
    scheme: Rule = "auto",
    wire_dtype: str = "fp32",
    known: Masks | None = None,
) -> bytes:
    """The global model and what to do with it, for devices that hold the `known` masks (None: any device)."""
    tensors = {name: to_wire(name, tensor, wire_dtype) for name, tensor in model.state_dict().items()}
    header: Header = {"plan": asdict(plan)}
    layers = sparse_layers(model)
    masks = {name: tensors.pop(f"{name}.mask") for name in layers}
    if masks:
        header["masks"] = mask_version(masks)
    held = mask_version(known) if known else None
    if held == header.get("masks"):
        return encode(tensors, header, MESSAGE_VERSION)
    if known:
        header["known"] = held
    for name, layer in layers.items():
        held_mask = known[name] if known else None
        tensors[f"{name}.mask"], tensors[f"{name}.values"] = encode_sparse(
            masks[name], tensors[f"{name}.values"], *_matrix(layer), scheme, held_mask
        )
    return encode(tensors, header, MESSAGE_VERSION)


def decode_broadcast(
    message: bytes, model: nn.Module, memory: MaskMemory | None = None
) -> tuple[dict[str, Tensor], Plan]:
    """The state that a model like this one is to have, and the plan.

    New masks go into the memory. Raises `MaskMissingError` when the message builds on masks that are not in
    it, and `MessageError` for whatever is not a broadcast of this model.
    """
    tensors, header = decode(message, MESSAGE_VERSION)
    plan = _read_plan(header)
    layers, version = sparse_layers(model), _read_version(header, "masks")
    masks: dict[str, Tensor] = {}
    if layers and version is not None and not any(f"{name}.mask" in tensors for name in layers):
        masks = _recall(memory, version, layers)
    elif layers:
        held = _read_version(header, "known")
        known = _recall(memory, held, layers) if held is not None else {}
        for name, layer in layers.items():
            code, values = _take(tensors, f"{name}.mask"), _take(tensors, f"{name}.values")
            masks[name], tensors[f"{name}.values"] = decode_sparse(
                code, values, *_matrix(layer), known.get(name)
            )
        if mask_version(masks) != version:
            raise MessageError("the masks are not those that the message names")
        if memory is not None:
            memory.remember(masks, version)
    return _checked_state(tensors, masks, model), plan


def encode_update(
    device: int,
    samples: int,
    loss: float,
    model: nn.Module,
    extras: Extras,
    withheld: frozenset[str] = frozenset(),
    *,
    scheme: Rule = "auto",
    wire_dtype: str = "fp32",
) -> bytes:
    """A device's trained weights, but those withheld, and what its method sends beside them.

    Only weights are rounded to the wire's type: nobody knows the range of gradients and of a method's extras.
    """
    layers = sparse_layers(model)
    tensors = {
        f"weights/{name}": to_wire(name, value, wire_dtype)
        for name, value in model.state_dict().items()
        if value.is_floating_point() and name not in withheld
    }
    if unknown := (extras.growth.keys() | extras.masks.keys()) - layers.keys():
        raise FedmefError(f"the method sends positions of {min(unknown)}, which is no sparse layer")
    for name, scores in extras.growth.items():
        positions = scores.positions.cpu()
        if (positions.diff() <= 0).any():
            raise FedmefError(f"the growth positions of {name} are not ascending and distinct")
        # Their number changes from round to round, and with it the scheme that is smallest.
        tensors[f"positions/{name}"] = encode_indices(positions, *_matrix(layers[name]), "auto")
        tensors[f"gradients/{name}"] = scores.gradients
    for name, mask in extras.masks.items():
        tensors[f"masks/{name}"] = encode_mask(mask.cpu(), *_matrix(layers[name]), scheme)
    tensors |= {f"extra/{name}": value for name, value in extras.tensors.items()}
    # A loss that is not finite has no place in JSON; the weights will tell.
    return encode(tensors, {"device": device, "samples": samples, "loss": repr(loss)}, MESSAGE_VERSION)


def decode_update(message: bytes, model: nn.Module) -> Update:
    """The inverse of `encode_update`, as far as the update goes, for the model that was sent."""
    tensors, header = decode(message, MESSAGE_VERSION)
    kinds: dict[str, dict[str, Tensor]] = {
        kind: {} for kind in ("weights", "positions", "gradients", "masks", "extra")
    }
    for key, value in tensors.items():
        kind, _, name = key.partition("/")
        if kind not in kinds:
            raise MessageError(f"an update has no {key}")
        kinds[kind][name] = value
    own, layers = model.state_dict(), sparse_layers(model)
    if unknown := kinds["weights"].keys() - own.keys():
        raise MessageError(f"the model has no {min(unknown)}")
    if unknown := (kinds["positions"].keys() | kinds["masks"].keys()) - layers.keys():
        raise MessageError(f"the model has no sparse layer {min(unknown)}")
    if kinds["positions"].keys() != kinds["gradients"].keys():
        raise MessageError("growth positions without gradients, or the other way round")
    weights = {name: from_wire(name, value, own[name].dtype) for name, value in kinds["weights"].items()}
    growth = {
        name: GrowthScores(
            decode_indices(code, *_matrix(layers[name])),
            from_wire(f"gradients/{name}", kinds["gradients"][name], own[f"{name}.values"].dtype),
        )
        for name, code in kinds["positions"].items()
    }
    masks = {name: decode_mask(code, *_matrix(layers[name])) for name, code in kinds["masks"].items()}
    device, samples = _read_count(header, "device"), _read_count(header, "samples")
    return Update(device, samples, _read_loss(header), weights, Extras(growth, kinds["extra"], masks))


def _matrix(layer: SparseConv2d) -> tuple[int, int]:
    """A weight as rows and columns: a row for each filter."""
    return layer.geometry.shape[0], layer.geometry.filter_size


def _recall(memory: MaskMemory | None, version: str, layers: Mapping[str, SparseConv2d]) -> dict[str, Tensor]:
    if memory is None:
        raise MaskMissingError(f"this device remembers no masks, but the message builds on masks {version}")
    masks = memory.recall(version)
    shapes = {name: layer.mask.shape for name, layer in layers.items()}
    if {name: mask.shape for name, mask in masks.items()} != shapes:
        raise MessageError(f"the masks {version} are those of another model")
    return masks


def _checked_state(tensors: dict[str, Tensor], masks: Masks, model: nn.Module) -> dict[str, Tensor]:
    """The whole state, if it fits the model: the same names and types, and shapes as the masks allow."""
    own = model.state_dict()
    shapes = {name: tensor.shape for name, tensor in own.items()}
    shapes |= {f"{name}.values": torch.Size([count_bits(mask)]) for name, mask in masks.items()}
    state = tensors | {f"{name}.mask": mask for name, mask in masks.items()}
    if wrong := state.keys() ^ own.keys():
        raise MessageError(f"the message or the model has no {min(wrong)}")
    for name, tensor in state.items():
        if tensor.shape != shapes[name]:
            raise MessageError(f"{name} is of shape {list(tensor.shape)} instead of {list(shapes[name])}")
        state[name] = from_wire(name, tensor, own[name].dtype)
        if tensor.is_floating_point() and not state[name].isfinite().all():
            raise MessageError(f"{name} has values that are not finite")
    return {name: state[name] for name in own}


def _take(tensors: dict[str, Tensor], name: str) -> Tensor:
    if name not in tensors:
        raise MessageError(f"the message has no {name}")
    return tensors.pop(name)


def _read_plan(header: Header) -> Plan:
    try:
        plan = Plan(**header["plan"])
        numbers = (plan.round, plan.attempt, plan.learning_rate, plan.adjustment_rate)
        sensible = type(plan.round) is int and all(
            number >= 0 and math.isfinite(number) for number in numbers
        )
    except (KeyError, TypeError, OverflowError) as error:
        raise MessageError(f"a broadcast without a plan: {error}") from error
    if not sensible:
        raise MessageError(f"a broadcast with a plan that makes no sense: {plan}")
    return plan


def _read_version(header: Header, name: str) -> str | None:
    version = header.get(name)
    if version is None or (isinstance(version, str) and re.fullmatch(r"[0-9a-f]{32}", version)):
        return version
    raise MessageError(f"'{name}' is no version of masks")  # and must not become a file's name


def _read_count(header: Header, name: str) -> int:
    count = header.get(name)
    if type(count) is not int or not 0 <= count < 2**48:
        raise MessageError(f"not a device's update: its {name} is no number")
    return count


def _read_loss(header: Header) -> float:
    try:
        return float(str(header["loss"]))
    except (KeyError, ValueError) as error:
        raise MessageError(f"not a device's update: {error}") from error
