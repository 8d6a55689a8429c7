"""What a round trip sends and how long its messages take, for a sparse ResNet18 beside FedAvg's.

A round trip is one download with all masks and one upload, without an adjustment: the most that FedMef sends
in an ordinary round. Bytes are lengths of real messages; the ratio is to FedAvg's round trip. Times are
medians of CPU time, on one thread: `down` is the broadcast, `up` the update; a difference is the broadcast
after an adjustment of 40 % of the weights, for a device that holds the masks before it.

How to read it: ratios hold on any machine (`tests/wire/test_traffic.py` asserts them). The goal for each
encode and each decode is 150 ms or less; on a busy machine even CPU time doubles.

    python benchmarks/wire.py [--repeats 9] [--json]
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from fedmef import sparsify
from fedmef.methods import Plan
from fedmef.methods.base import Extras
from fedmef.models import build_model
from fedmef.nn import guard_batchnorm, sparse_layers
from fedmef.sparsity import unpack_bits
from fedmef.wire import MaskMemory, Rule, mask_version
from fedmef.wire.exchange import decode_broadcast, decode_update, encode_broadcast, encode_update

GOALS = {("bitmap", "fp32"): 0.118, ("rice", "fp32"): 0.109, ("rice", "fp16"): 0.060}
CASES: tuple[tuple[Rule, str], ...] = (
    ("bitmap", "fp32"),
    ("rice", "fp32"),
    ("auto", "fp32"),
    ("paper", "fp32"),
    ("coo", "fp32"),
    ("csr", "fp32"),
    ("csc", "fp32"),
    ("dense", "fp32"),
    ("rice", "fp16"),
    ("rice", "bf16"),
)
PLAN = Plan(0, 0.1)
GOAL_MILLISECONDS = 150


@dataclass(frozen=True)
class Measurement:
    """One way to send the sparse network."""

    scheme: str
    wire_dtype: str
    bytes_down: int
    bytes_up: int
    ratio: float  # to FedAvg's round trip
    milliseconds: dict[str, float]


def network(sparsity: float | None) -> nn.Module:
    """FedAvg's network for None, otherwise FedMef's."""
    dense = build_model("resnet18", classes=10, channels=3, width=64, seed=0)
    if sparsity is None:
        return guard_batchnorm(dense)
    return sparsify(dense, sparsity=sparsity, normalize=True, activation_sparsity=sparsity)


def round_trip(model: nn.Module, scheme: Rule, wire_dtype: str) -> tuple[bytes, bytes]:
    """The two messages."""
    down = encode_broadcast(model, PLAN, scheme=scheme, wire_dtype=wire_dtype)
    up = encode_update(0, 500, 1.0, model, Extras(), scheme=scheme, wire_dtype=wire_dtype)
    return down, up


def milliseconds(work: Callable[[], object], repeats: int) -> float:
    work()
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return 1000 * statistics.median(seconds)


def measure(model: nn.Module, scheme: Rule, wire_dtype: str, dense: int, repeats: int) -> Measurement:
    down, up = round_trip(model, scheme, wire_dtype)
    times = {
        "encode down": milliseconds(
            lambda: encode_broadcast(model, PLAN, scheme=scheme, wire_dtype=wire_dtype), repeats
        ),
        "decode down": milliseconds(lambda: decode_broadcast(down, model), repeats),
        "encode up": milliseconds(
            lambda: encode_update(0, 500, 1.0, model, Extras(), wire_dtype=wire_dtype), repeats
        ),
        "decode up": milliseconds(lambda: decode_update(up, model), repeats),
    }
    return Measurement(scheme, wire_dtype, len(down), len(up), (len(down) + len(up)) / dense, times)


def measure_difference(model: nn.Module, dense: int, repeats: int) -> list[Measurement]:
    """Downloads for a device that holds the masks before an adjustment, and for one that holds the newest."""
    before = {name: layer.mask.clone() for name, layer in sparse_layers(model).items()}
    exchange(model, 0.4)
    after = {name: layer.mask for name, layer in sparse_layers(model).items()}
    measured = []
    with tempfile.TemporaryDirectory() as folder:
        memory = MaskMemory(Path(folder))
        memory.remember(before, mask_version(before))
        for label, known in (("difference", before), ("no masks", after)):
            down, up = encode_broadcast(model, PLAN, known=known), round_trip(model, "auto", "fp32")[1]
            times = {
                "encode down": milliseconds(lambda: encode_broadcast(model, PLAN, known=known), repeats),  # noqa: B023
                "decode down": milliseconds(lambda: decode_broadcast(down, model, memory), repeats),  # noqa: B023
            }
            ratio = (len(down) + len(up)) / dense
            measured.append(Measurement(label, "fp32", len(down), len(up), ratio, times))
    return measured


def exchange(model: nn.Module, share: float) -> None:
    """Drop this share of the weights of every sparse layer, and grow as many, at random."""
    generator = torch.Generator().manual_seed(0)
    for layer in sparse_layers(model).values():
        count = int(share * layer.active_count) if layer.density < 1 else 0
        positions, values = layer.active_positions(), layer.values.detach()
        pruned = (~unpack_bits(layer.mask, layer.geometry.size)).nonzero().squeeze(1)
        kept = torch.randperm(values.numel(), generator=generator)[count:]
        grown = pruned[torch.randperm(pruned.numel(), generator=generator)[:count]]
        now, order = torch.cat([positions[kept], grown]).sort()
        layer.assign(now, torch.cat([values[kept], values.new_zeros(count)])[order])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=9, help="of each encode and decode")
    parser.add_argument("--sparsity", type=float, default=0.9)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dense = sum(map(len, round_trip(network(None), "auto", "fp32")))
    model = network(arguments.sparsity)
    rows = [measure(model, *case, dense, arguments.repeats) for case in CASES]
    rows += measure_difference(model, dense, arguments.repeats)
    if arguments.json:
        print(json.dumps({"fedavg": dense, "cases": [asdict(row) for row in rows]}))
        return
    print(
        f"FedAvg's round trip: {dense:,} bytes; CPU milliseconds on one thread; goal {GOAL_MILLISECONDS} each"
    )
    for row in rows:
        goal = GOALS.get((row.scheme, row.wire_dtype))
        times = "  ".join(f"{name} {time:6.1f}" for name, time in row.milliseconds.items())
        print(
            f"{row.scheme:10} {row.wire_dtype}  down {row.bytes_down:>10,}  up {row.bytes_up:>10,}  "
            f"ratio {row.ratio:.4f} {f'(goal {goal})' if goal else '':13}  {times}"
        )


if __name__ == "__main__":
    main()
