"""The broadcast: the global model and the round's job, as bytes.

Down go the values of the model, and its masks and network as far as a device does not hold them: all of a
mask, or what has changed in it. Masks are coded (`fedmef.wire.sparse`).
"""

import re

import numpy as np

from fedmef.errors import MessageError, NetworkError, NotHeldError
from fedmef.sparsity.arrays import Array, Bytes
from fedmef.sparsity.model import Masks, Model, check_state
from fedmef.sparsity.network import Network
from fedmef.wire.container import MESSAGE_VERSION, Header, decode, encode
from fedmef.wire.floats import from_wire, to_wire
from fedmef.wire.job import Job, job_of, job_table
from fedmef.wire.sparse import decode_sparse, encode_sparse
from fedmef.wire.store import Store, mask_version, parse_network

NETWORK = "//network"  # no array of a model is called this


def encode_broadcast(
    model: Model, job: Job, *, known: Masks | None = None, knows_network: bool = False
) -> bytes:
    """The model and the job, for devices that hold the `known` masks (None: any device)."""
    network = model.network
    arrays = {name: to_wire(name, array, job.wire_dtype) for name, array in model.state.items()}
    header: Header = {"job": job_table(job), "network": network.digest}
    if not knows_network:
        arrays[NETWORK] = np.frombuffer(network.to_json(), dtype=np.uint8)
    masks = {name: arrays.pop(f"{name}.mask") for name in network.sparse_layers}
    if masks:
        header["masks"] = mask_version(masks)
    held = mask_version(known) if known else None
    if held == header.get("masks"):
        return encode(arrays, header, MESSAGE_VERSION)
    if known:
        header["known"] = held
    for name, layer in network.sparse_layers.items():
        arrays[f"{name}.mask"], arrays[f"{name}.values"] = encode_sparse(
            masks[name],
            arrays[f"{name}.values"],
            layer.filters,
            layer.filter_size,
            job.wire_scheme,
            known[name] if known else None,
        )
    return encode(arrays, header, MESSAGE_VERSION)


def decode_broadcast(
    message: bytes, store: Store | None = None, most_weights: int | None = None
) -> tuple[Model, Job]:
    """The inverse of `encode_broadcast`. What is new goes into the store.

    Decoding takes memory by a layer's size, which a short message can claim to be anything: a network of more
    than `most_weights`, active or pruned, is refused first.

    Raises `NotHeldError` when the message builds on masks or a network that are not in the store, and
    `MessageError` for whatever is not a broadcast.
    """
    arrays, header = decode(message, MESSAGE_VERSION)
    job = job_of(header.get("job"))
    network, is_new = _network(arrays, header, store)
    weights = sum(layer.size for layer in network.layers.values())
    if most_weights is not None and weights > most_weights:
        raise MessageError(f"a network of {weights:,} weights: this device takes at most {most_weights:,}")
    if is_new and store is not None:
        store.remember_network(network)
    layers, version = network.sparse_layers, _read_version(header, "masks")
    masks: dict[str, Bytes] = {}
    if layers and version is not None and not any(f"{name}.mask" in arrays for name in layers):
        masks = _recall(store, version, network)
    elif layers:
        held = _read_version(header, "known")
        known = _recall(store, held, network) if held is not None else {}
        for name, layer in layers.items():
            code, values = _take(arrays, f"{name}.mask"), _take(arrays, f"{name}.values")
            masks[name], arrays[f"{name}.values"] = decode_sparse(
                code, values, layer.filters, layer.filter_size, known.get(name)
            )
        if mask_version(masks) != version:
            raise MessageError("the masks are not those that the message names")
        if store is not None and job.remember_masks:
            store.remember_masks(masks, version)
    return Model(network, _checked_state(arrays, masks, network)), job


def _network(arrays: dict[str, Array], header: Header, store: Store | None) -> tuple[Network, bool]:
    """The network, and whether it came with the message."""
    digest = _read_version(header, "network")
    if digest is None:
        raise MessageError("a broadcast that names no network")
    if NETWORK not in arrays:
        if store is None:
            raise NotHeldError(f"this device keeps no networks: {digest} must be sent")
        return store.recall_network(digest), False
    content = arrays.pop(NETWORK)
    if content.dtype != np.uint8:
        raise MessageError("a network must be bytes")
    try:
        network = parse_network(content.tobytes())
    except NetworkError as error:
        raise MessageError(str(error)) from None
    if network.digest != digest:
        raise MessageError("the network is not the one that the message names")
    return network, True


def _recall(store: Store | None, version: str, network: Network) -> dict[str, Bytes]:
    if store is None:
        raise NotHeldError(f"this device keeps no masks: those of {version} must be sent")
    masks = store.recall_masks(version)
    if masks.keys() != network.sparse_layers.keys():
        raise MessageError("the masks that it builds on are those of another network")
    return masks


def _checked_state(arrays: dict[str, Array], masks: Masks, network: Network) -> dict[str, Array]:
    """The state: names, types and shapes as the network says, and finite."""
    state = arrays | {f"{name}.mask": mask for name, mask in masks.items()}
    for name, spec in network.arrays.items():
        if name in state:
            state[name] = from_wire(name, state[name], spec.dtype)
            if state[name].dtype.kind == "f" and not np.isfinite(state[name]).all():
                raise MessageError(f"{name} has values that are not finite")
    try:
        check_state(network, state)
    except NetworkError as error:
        raise MessageError(str(error)) from None
    return {name: state[name] for name in network.arrays}


def _take(arrays: dict[str, Array], name: str) -> Array:
    if name not in arrays:
        raise MessageError(f"the message has no {name}")
    return arrays.pop(name)


def _read_version(header: Header, name: str) -> str | None:
    version = header.get(name)
    if version is None or (isinstance(version, str) and re.fullmatch(r"[0-9a-f]{32}", version)):
        return version
    raise MessageError(f"'{name}' is not a version")  # and must not become a file's name
