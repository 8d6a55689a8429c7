"""The three scales of a study: the paper's setting, a desk's hour, and a smoke test of seconds."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

from fedmef.errors import unknown_name
from fedmef.methods import find_method

Scale = Literal["smoke", "desk", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)

# As in configs/paper.toml; meant for a GPU.
PAPER: Mapping[str, Any] = {
    "dataset": "cifar10",
    "devices": 100,
    "devices_per_round": 10,
    "rounds": 500,
    "partition": "dirichlet",
    "alpha": 0.5,
    "local_epochs": 10,
    "batch_size": 64,
    "learning_rate": 1.0,
    "learning_rate_decay": 0.95,
    "decay_every": 10,
    "sparsity": 0.9,
    "activation_sparsity": 0.9,
    "adjust_every": 10,
    "adjust_until": 300,
    "extrusion": 0.1,  # the paper does not say its λ; docs/notes/extrusion.md says why this one
    "evaluate_every": 5,
}
# The same federation with a small network and few rounds; how its settings were found: docs/notes/tuning.md.
DESK: Mapping[str, Any] = {
    **PAPER,
    "stem": "strided",
    "rounds": 40,
    "local_epochs": 2,
    "learning_rate_decay": 0.985,
    "decay_every": 1,
    # At width 16, a uniform density of 0.1 would leave 1.6 weights to each filter of a 1x1 convolution.
    "distribution": "erk",
    "adjust_every": 3,
    "adjust_until": 24,
}
DESK_NSCONV: Mapping[str, Any] = {"gamma": 0.7, "learning_rate_decay": 1.0}
# FedMef's and FedTiny's are tuned with these decays, the others' were the best of a few with a faster one.
# Any other method has that of its kind.
DESK_RATES = {"fedmef": 1.0, "fedtiny": 0.3, "feddst": 0.3, "fl_pqsu": 0.3, "fedavg": 0.3}
SMOKE: Mapping[str, Any] = {
    **PAPER,
    "dataset": "digits",
    "model": "small_cnn",
    "width": 8,
    "devices": 10,
    "devices_per_round": 2,
    "rounds": 3,
    "local_epochs": 1,
    "batch_size": 32,
    "learning_rate": 0.1,
    "adjust_every": 1,
    "adjust_until": 3,
    "evaluate_every": 1,
    "engine": "inline",
}
# Where a smoke test must show that the study's own network works.
SMOKE_NETWORK: Mapping[str, Any] = {
    "dataset": "synthetic",
    "synthetic_size": 8,
    "synthetic_train": 40,
    "synthetic_test": 20,
    "batch_size": 8,
    "rounds": 2,
}

# The paper runs everything five times.
SEEDS: Mapping[Scale, int] = {"smoke": 1, "desk": 1, "paper": 5}


def find_scale(name: str) -> Scale:
    """The scale of that name."""
    for scale in SCALES:
        if scale == name:
            return scale
    raise unknown_name("scale", name, SCALES)


def settings(scale: Scale, method: str, *, model: str | None = None, **own: Any) -> dict[str, Any]:
    """The settings of one run: the scale's, then the study's own.

    `model` is for a study of this very network; otherwise it is ResNet18, or a small one at smoke scale.
    """
    chosen = {"method": method, **_of_scale(scale, method, model), **own}
    if not find_method(method).recipe.has_sparsity:
        chosen["sparsity"] = 0.0
    return chosen


def _of_scale(scale: Scale, method: str, model: str | None) -> dict[str, Any]:
    network = {"model": model or "resnet18"}
    if scale == "paper":
        return {**PAPER, **network}
    if scale == "desk":
        nsconv = find_method(method).recipe.norm == "nsconv"
        kind = "fedmef" if nsconv else "fedtiny"
        return {
            **DESK,
            **(DESK_NSCONV if nsconv else {}),
            **network,
            "width": 16 if network["model"] == "resnet18" else 8,  # the others take longer
            "learning_rate": DESK_RATES.get(method, DESK_RATES[kind]),
        }
    return {**SMOKE, **SMOKE_NETWORK, **network} if model else dict(SMOKE)
