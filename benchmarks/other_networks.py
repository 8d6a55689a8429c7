"""Whether other people's networks become sparse: from packages of PyPI, and those of `tests/nn/styles.py`.

Each is converted with NSConv, 90 % sparsity and pruned caches, and checked by function against its own code.
Printed are parameters and kept activations over those of the dense network, what stays as it is, and what
still keeps memory. An error must name a module and a line, and leave the model as it was.

The packages are no dependencies of fedmef; a network whose package is missing is left out:

    pip install --no-deps timm torchvision pytorchcv efficientnet_pytorch resnest geffnet densenet_pytorch \
        googlenet_pytorch monai
    python benchmarks/other_networks.py [part of a name ...]
"""

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from fedmef.errors import UserError
from fedmef.nn import Conversion, conversion_of, sparsify
from tests.nn.styles import STYLES, build_style, example_for

SMOOTH = {"silu", "swish", "gelu", "gelutanh", "hardswish", "mish", "prelu", "elu", "leakyrelu"}

# Names by package, and the size of the images.
TORCHVISION = {
    224: ("alexnet",),
    96: (
        "resnet18", "resnext50_32x4d", "densenet121", "squeezenet1_1", "mobilenet_v2", "mobilenet_v3_small",
        "efficientnet_b0", "shufflenet_v2_x0_5", "mnasnet0_5", "googlenet", "regnet_y_400mf", "convnext_tiny",
    ),
    299: ("inception_v3",),
}  # fmt: skip
TIMM = {
    96: (
        "resnet26d", "seresnet18", "ecaresnet26t", "skresnet18", "res2net50_26w_4s", "resnest14d", "dpn48b",
        "dla34", "hrnet_w18_small", "mobilenetv3_small_050", "efficientnet_lite0", "tf_efficientnet_b0",
        "ghostnet_050", "regnety_002", "repvgg_a0", "selecsls42", "cspresnet50", "nf_resnet26",
        "convnext_atto", "rexnet_100", "mixnet_s", "mobileone_s0", "resnetv2_50",
    ),
    224: ("vit_tiny_patch16_224",),
}  # fmt: skip
PYTORCHCV = {
    224: (
        "preresnet10", "bam_resnet18", "cbam_resnet18", "peleenet", "condensenet74_c4_g4", "fdmobilenet_w1",
        "igcv3_w1", "darknet_tiny", "shufflenet_g1_w1", "menet108_8x1_g3",
    ),
    32: (
        "resnet20_cifar10", "rir_cifar10", "shakeshakeresnet20_2x16d_cifar10", "diaresnet20_cifar10",
        "nin_cifar10",
    ),
}  # fmt: skip


def torchvision_network(name: str) -> Any:
    options = {"aux_logits": True, "init_weights": False} if name in ("googlenet", "inception_v3") else {}
    return getattr(_torchvision().models, name)(num_classes=10, **options)


def timm_network(name: str) -> Any:
    _torchvision()
    return import_module("timm").create_model(name, num_classes=10)


def pytorchcv_network(name: str) -> Any:
    options = {} if name.endswith("cifar10") else {"num_classes": 10}
    return import_module("pytorchcv.model_provider").get_model(name, **options)


OTHERS: Mapping[str, tuple[Callable[[], Any], int]] = {
    "efficientnet_pytorch b0": (
        lambda: import_module("efficientnet_pytorch").EfficientNet.from_name(
            "efficientnet-b0", num_classes=10
        ),
        96,
    ),
    "resnest resnest50": (lambda: import_module("resnest.torch").resnest50(num_classes=10), 96),
    "geffnet mobilenetv3_rw": (
        lambda: import_module("geffnet").create_model("mobilenetv3_rw", num_classes=10),
        96,
    ),
    "densenet_pytorch densenet121": (
        lambda: import_module("densenet_pytorch").DenseNet.from_name("densenet121"),
        96,
    ),
    "googlenet_pytorch googlenet": (
        lambda: import_module("googlenet_pytorch").GoogLeNet.from_name("googlenet"),
        96,
    ),
    "monai UNet": (lambda: import_module("monai.networks.nets").UNet(2, 3, 2, (8, 16, 32), (2, 2)), 96),
    "monai SEResNet50": (
        lambda: import_module("monai.networks.nets").SEResNet50(
            spatial_dims=2, in_channels=3, num_classes=10
        ),
        96,
    ),
}


def networks() -> dict[str, tuple[Callable[[], Any], tuple[Tensor, ...]]]:
    """What builds each network, and images for it."""
    found: dict[str, tuple[Callable[[], Any], int]] = {}
    for package, table, build in (
        ("torchvision", TORCHVISION, torchvision_network),
        ("timm", TIMM, timm_network),
        ("pytorchcv", PYTORCHCV, pytorchcv_network),
    ):
        found |= {f"{package} {name}": (partial(build, name), size) for size in table for name in table[size]}
    found |= OTHERS
    random = torch.Generator().manual_seed(0)
    sized = {
        name: (build, (torch.randn(2, 3, size, size, generator=random),))
        for name, (build, size) in found.items()
    }
    return sized | {f"style {name}": (partial(build_style, name), example_for(name)) for name in STYLES}


@dataclass(frozen=True)
class Row:
    """What became of one network."""

    name: str
    is_relu: bool
    conversion: Conversion | None
    error: str = ""
    untouched: bool = True

    def __str__(self) -> str:
        if self.conversion is None:
            return f"{self.name:42} no    {'untouched' if self.untouched else 'CHANGED'}: {self.error}"
        kept = self.conversion.kept_ratio
        facts = f"{self.conversion.parameter_ratio:>10.2f}{'' if kept is None else f'{kept:.3f}':>7}"
        reasons = Counter(self.conversion.left.values())
        left = ", ".join(f"{count} x {reason}" for reason, count in reasons.items())
        before = self.conversion.kept_before or 1
        keepers = ", ".join(f"{k} {size / before:.2f}" for k, size in self.conversion.main_keepers.items())
        kind = "ReLU" if self.is_relu else "other"
        checked = "yes" if self.conversion.checked else "NO"
        return (
            f"{self.name:42} yes {checked:>8} {kind:>6}{facts}  {keepers}{f'; left: {left}' if left else ''}"
        )


def convert(name: str, build: Callable[[], Any], images: tuple[Tensor, ...]) -> Row | None:
    """One network; None if its package is missing."""
    torch.manual_seed(0)
    try:
        model = build()
    except ImportError:
        return None
    kinds = [(part, type(module)) for part, module in model.named_modules()]
    state = {
        key: tensor for key, tensor in model.state_dict().items() if not torch.nn.parameter.is_lazy(tensor)
    }
    state = {key: tensor.clone() for key, tensor in state.items()}
    names = {kind.__name__.lower() for _, kind in kinds}
    is_relu = not (names & SMOOTH or any("swish" in name for name in names))
    try:
        sparsify(
            model,
            sparsity=0.9,
            normalize=True,
            activation_sparsity=0.9,
            example=images,
            check=True,
            quiet=True,
        )
    except UserError as error:
        untouched = kinds == [(part, type(module)) for part, module in model.named_modules()]
        after = model.state_dict()
        untouched = untouched and all(torch.equal(after[key], tensor) for key, tensor in state.items())
        return Row(name, is_relu, None, str(error), untouched)
    return Row(name, is_relu, conversion_of(model))


def main(wanted: list[str]) -> None:
    """Print a row for each network, and how many were converted."""
    warnings.simplefilter("ignore")
    with suppress(ImportError):
        _torchvision()  # other packages import it too
    header = f"{'network':42} {'converted, checked':18}{'parameters':>10}{'kept':>7}"
    print(f"{header}  what keeps memory; what is left")
    rows = []
    for name, (build, images) in networks().items():
        if wanted and not any(part in name for part in wanted):
            continue
        row = convert(name, build, images)
        print(row or f"{name:42} its package is not installed", flush=True)
        rows += [] if row is None else [row]
    converted = [row.conversion for row in rows if row.conversion is not None]
    relu = [row for row in rows if row.is_relu and row.conversion is not None]
    small = [row for row in relu if row.conversion and (row.conversion.kept_ratio or 1) <= 0.15]
    print(
        f"{len(rows)} networks: {len(converted)} converted, {sum(c.checked for c in converted)} of them "
        f"checked by function; {len(small)} of {len(relu)} with ReLU keep at most 0.15x; "
        f"{sum(row.conversion is None and row.untouched for row in rows)} refused and untouched"
    )


def _torchvision() -> Any:
    """torchvision's networks need none of its compiled operations, which PyPI has for CUDA only."""
    try:
        return import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        for operation in ("nms", "qnms"):
            _STAND_INS.define(f"{operation}(Tensor boxes) -> Tensor")
        return import_module("torchvision")


_STAND_INS: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="part of a name; all networks by default")
    main(parser.parse_args().names)
