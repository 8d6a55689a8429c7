"""A run's model as a file that other programs open, without fedmef."""

import io
import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load

from fedmef.errors import UserError
from fedmef.exports.files import FORMATS, exported
from fedmef.nn.densify import densify
from fedmef.nn.module import NetworkModule, load_state
from fedmef.sparsity.arrays import Array
from fedmef.sparsity.model import Model
from fedmef.sparsity.network import INPUT, Input, Network
from fedmef.sparsity.operations import Opaque
from tests.nn.prepared import exported as described
from tests.nn.prepared import prepared


@pytest.fixture(scope="module")
def model() -> Model:
    return described(prepared("small_cnn-cifar", "nsconv"))


@pytest.fixture(scope="module")
def images() -> Array:
    return np.random.default_rng(0).integers(256, size=(5, 3, 32, 32), dtype=np.uint8)


@pytest.fixture(scope="module")
def logits(model: Model, images: Array) -> Array:
    module = NetworkModule(model.network).eval()
    load_state(module, model.network, model.state)
    with torch.no_grad():
        return np.asarray(module(torch.from_numpy(images)))


def test_onnx_takes_images_as_they_are(model: Model, images: Array, logits: Array) -> None:
    session = onnxruntime.InferenceSession(exported(model, "onnx"), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: images})
    assert np.abs(found - logits).max() < 1e-4


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch prefers torch.export
def test_torchscript_takes_images_as_they_are(model: Model, images: Array, logits: Array) -> None:
    module = torch.jit.load(io.BytesIO(exported(model, "torchscript")))  # type: ignore[no-untyped-call]
    assert np.abs(module(torch.from_numpy(images)).numpy() - logits).max() < 1e-4


def test_safetensors_has_plain_weights_and_says_how_images_are_normalised(
    model: Model, images: Array, logits: Array, tmp_path: Path
) -> None:
    content = exported(model, "safetensors")
    (tmp_path / "model.safetensors").write_bytes(content)
    with safe_open(tmp_path / "model.safetensors", "np") as opened:
        described = json.loads(opened.metadata()["fedmef"])
    mean, std = (np.array(described["input"][name])[:, None, None] for name in ("mean", "std"))
    plain = densify(prepared("small_cnn-cifar", "nsconv"))
    arrays = {name: torch.from_numpy(array) for name, array in load(content).items()}
    assert {name for name in plain.state_dict() if not name.startswith("classifier")} < arrays.keys()
    plain.load_state_dict(arrays, strict=False)
    batch = torch.from_numpy(((images / 255 - mean) / std).astype(np.float32))
    with torch.no_grad():
        assert np.abs(plain(batch).numpy() - logits).max() < 1e-4


def test_what_only_its_own_code_can_execute_is_refused() -> None:
    steps = (Opaque(name="own", inputs=(INPUT,), description="Attention", shape=(10,)),)
    network = Network(Input((1, 4, 4), (0.5,), (0.5,)), steps)
    for kind in FORMATS:
        with pytest.raises(UserError, match=r"own code .* \(Attention\).*fedmef\.densify"):
            exported(Model(network, {}), kind)


def test_the_same_model_gives_the_same_file(model: Model) -> None:
    for kind in FORMATS:
        if kind != "torchscript":  # PyTorch writes counted names into it
            assert exported(model, kind) == exported(model, kind)
