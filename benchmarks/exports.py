"""How large exported models are, and how far onnxruntime's logits are from PyTorch's.

The built-in networks at their usual width and those of `tests/nn/networks.py`, 90 % sparse with NSConv.

    python -m benchmarks.exports
"""

import argparse
import json

import numpy as np
import onnxruntime
import torch

from fedmef.experiment.settings import Experiment
from fedmef.exports.files import FORMATS, exported
from fedmef.models import MODELS, build_model
from fedmef.nn.module import NetworkModule, load_state
from fedmef.nn.prepare import prepare
from fedmef.sparsity.model import Model
from fedmef.wire.container import encode
from tests.nn.networks import DESCRIBED
from tests.nn.prepared import RECIPES, worn
from tests.nn.prepared import exported as described

NETWORKS = {
    name: lambda name=name: build_model(name, classes=10, channels=3, width=None, seed=0) for name in MODELS
} | DESCRIBED


def sizes_and_difference(model: Model) -> dict[str, float]:
    """Bytes of every kind of file, and the largest difference of a logit, relative to the largest logit."""
    files = {kind: exported(model, kind) for kind in FORMATS}
    images = np.random.default_rng(0).integers(256, size=(4, *model.network.input.shape), dtype=np.uint8)
    module = NetworkModule(model.network).eval()
    load_state(module, model.network, model.state)
    with torch.no_grad():
        expected = module(torch.from_numpy(images)).numpy()
    session = onnxruntime.InferenceSession(files["onnx"], providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"images": images})
    weights = sum(layer.size for layer in model.network.layers.values())
    return {
        "weights": weights,
        "run": len(encode(model.state, {})),
        **{kind: len(content) for kind, content in files.items()},
        "difference": float(np.abs(found - expected).max() / max(1.0, np.abs(expected).max())),
    }


def main() -> None:
    """Print a row for each network."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    as_json = parser.parse_args().json
    rows = []
    if not as_json:
        print(
            f"{'network':24}{'weights':>12}{'the run':>10}{'onnx':>10}{'torchscript':>13}{'safetensors':>13}"
            f"{'difference':>12}"
        )
    for name, build in NETWORKS.items():
        torch.manual_seed(0)
        module = worn(prepare(build(), RECIPES["nsconv"], Experiment(sparsity=0.9)))
        seen = sizes_and_difference(described(module))
        rows.append({"network": name, **seen})
        if not as_json:
            run, onnx, torchscript, safetensors = (f"{seen[kind] / 1e6:.2f} MB" for kind in ("run", *FORMATS))
            print(
                f"{name:24}{seen['weights']:>12,}{run:>10}{onnx:>10}{torchscript:>13}{safetensors:>13}"
                f"{seen['difference']:>12.1e}"
            )
    if as_json:
        print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
