"""The four scales of a study: a smoke test, desk and bench for a processor, and the paper's setting."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

from fedmef.errors import unknown_name
from fedmef.methods import find_method

Scale = Literal["smoke", "desk", "bench", "paper"]
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
# The best of each one's validation runs. Any other method has those of its kind.
DESK_TUNED: Mapping[str, Mapping[str, Any]] = {
    "fedmef": {"learning_rate": 1.0, "learning_rate_decay": 1.0, "gamma": 0.7},
    "fedtiny": {"learning_rate": 0.3},
    "feddst": {"learning_rate": 0.3, "learning_rate_decay": 1.0},
    "fl_pqsu": {"learning_rate": 0.45, "learning_rate_decay": 1.0},
}
DESK_WIDTH, BENCH_WIDTH = 16, 32
# Desk with a wider network for longer, with crops and flips, weight decay and a rate that falls to 0.
BENCH: Mapping[str, Any] = {
    "rounds": 100,
    "rate_schedule": "cosine",
    "learning_rate_decay": 0.985,  # a cosine does not use it
    "augment": True,
    "adjust_every": 5,
    "adjust_until": 60,
}
# The best of four trials each that does not diverge on CIFAR-100.
BENCH_TUNED: Mapping[str, Mapping[str, Any]] = {
    "fedmef": {"learning_rate": 1.0, "weight_decay": 1e-3},
    "fedtiny": {"learning_rate": 0.3, "weight_decay": 1e-3},
    "feddst": {"learning_rate": 0.3, "weight_decay": 1e-3},
    "fl_pqsu": {"learning_rate": 0.6, "weight_decay": 5e-4},
}
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
SEEDS: Mapping[Scale, int] = {"smoke": 1, "desk": 1, "bench": 3, "paper": 5}


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
    if scale in ("desk", "bench"):
        kind = "fedmef" if find_method(method).recipe.norm == "nsconv" else "fedtiny"
        chosen, width = {**DESK, **DESK_TUNED.get(method, DESK_TUNED[kind])}, DESK_WIDTH
        if scale == "bench":
            chosen.update(BENCH)
            chosen.update(BENCH_TUNED.get(method, BENCH_TUNED[kind]))
            width = BENCH_WIDTH
        # The other networks take longer.
        return {**chosen, **network, "width": width if network["model"] == "resnet18" else width // 2}
    return {**SMOKE, **SMOKE_NETWORK, **network} if model else dict(SMOKE)
