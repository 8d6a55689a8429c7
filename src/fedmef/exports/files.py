"""A finished run's model as a file for other programs.

Every format has the weights dense or as sparse tensors of its own, NSConv's normalisation folded in. ONNX and
TorchScript files take images of uint8 and normalise them inside; a safetensors file says how in its metadata.
"""

import io
import json
import warnings
from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
import torch
from torch.jit import TracerWarning  # type: ignore[attr-defined]

from fedmef.errors import NotInstalledError, UserError
from fedmef.nn.densify import dense_model
from fedmef.nn.module import NetworkModule, load_state
from fedmef.sparsity.model import Model
from fedmef.wire.tensors import pack

Format = Literal["onnx", "torchscript", "safetensors"]
FORMATS: tuple[Format, ...] = get_args(Format)
SUFFIXES: dict[Format, str] = {"onnx": ".onnx", "torchscript": ".pt", "safetensors": ".safetensors"}


def exported(model: Model, kind: Format) -> bytes:
    """A file's content; raises `UserError` for a network that only its own code can execute."""
    if model.network.opaque is not None:
        raise UserError(
            f"only its own code can execute this network ({model.network.opaque.description}): "
            "use fedmef.densify(fedmef.load(RUN, allow_code=True)) and PyTorch's own export"
        )
    makers: dict[Format, Callable[[Model], bytes]] = {
        "onnx": _onnx,
        "torchscript": _torchscript,
        "safetensors": _safetensors,
    }
    return makers[kind](dense_model(model))


def _onnx(dense: Model) -> bytes:
    try:
        from fedmef.exports.onnx import onnx_model  # noqa: PLC0415  (only this format needs it)
    except ModuleNotFoundError as error:
        raise NotInstalledError("ONNX files need the package onnx: pip install onnx") from error
    content: bytes = onnx_model(dense).SerializeToString()
    return content


@torch.no_grad()
def _torchscript(dense: Model) -> bytes:
    module = NetworkModule(dense.network, plain=True).eval().requires_grad_(False)
    load_state(module, dense.network, dense.state)
    images = torch.zeros(2, *dense.network.input.shape, dtype=torch.uint8)
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # PyTorch prefers torch.export
        warnings.simplefilter("ignore", TracerWarning)  # the images' normalisation is constant
        torch.jit.save(torch.jit.trace(module, images), buffer)  # type: ignore[no-untyped-call]
    return buffer.getvalue()


def _safetensors(dense: Model) -> bytes:
    """PyTorch's names and shapes, which `load_state_dict` takes where nothing normalises the features."""
    network = dense.network
    described = {
        "input": {"shape": network.input.shape, "mean": network.input.mean, "std": network.input.std},
        "classes": network.classes,
        "network": json.loads(network.to_json()),
    }
    arrays = {name: np.asarray(array) for name, array in dense.state.items()}
    head, contents = pack(arrays, {"format": "pt", "fedmef": json.dumps(described, sort_keys=True)})
    return b"".join((head, *contents))
