"""What a round trip sends and how long its messages take, for a sparse ResNet18 next to FedAvg's.

A round trip is one download with the network and all masks and one upload, without an adjustment: the most
that FedMef sends in an ordinary round. Bytes are lengths of real messages; the ratio is to FedAvg's round
trip. Times are medians of CPU time, on one thread: `down` is the broadcast, `up` the update; a difference is
the broadcast after an adjustment of 40 % of the weights, for a device that holds the masks before it.

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

import numpy as np

from fedmef.experiment.settings import make_experiment
from fedmef.models.initial import initial_model
from fedmef.sparsity.masks import unpack_bits
from fedmef.sparsity.model import Masks, Model
from fedmef.wire.broadcast import decode_broadcast, encode_broadcast
from fedmef.wire.floats import WireType
from fedmef.wire.job import Job
from fedmef.wire.schemes import Rule
from fedmef.wire.store import Store, mask_version
from fedmef.wire.update import Extras, Update, decode_update, encode_update

GOALS: dict[tuple[Rule, WireType], float] = {
    ("bitmap", "fp32"): 0.118,
    ("rice", "fp32"): 0.109,
    ("rice", "fp16"): 0.060,
}
CASES: tuple[tuple[Rule, WireType], ...] = (
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


def network(sparsity: float | None) -> Model:
    """FedAvg's network for None, otherwise FedMef's."""
    settings = {"method": "fedavg"} if sparsity is None else {"method": "fedmef", "sparsity": sparsity}
    experiment = make_experiment({**settings, "model": "resnet18"})
    return initial_model(experiment, (3, 32, 32), 10, ((0.5,) * 3, (0.5,) * 3))


def job_of(scheme: Rule, wire_dtype: WireType) -> Job:
    """A round's instruction, which says how messages are coded."""
    return Job(
        method="fedmef",
        round=0,
        seed=0,
        learning_rate=0.1,
        initial_rate=0.1,
        wire_scheme=scheme,
        wire_dtype=wire_dtype,
    )


def update_of(model: Model) -> Update:
    """The answer of a device that has trained nothing."""
    return Update(0, 500, 1.0, {name: model.state[name] for name in model.network.floats}, Extras())


def round_trip(model: Model, scheme: Rule, wire_dtype: WireType) -> tuple[bytes, bytes]:
    """The two messages."""
    down = encode_broadcast(model, job_of(scheme, wire_dtype))
    up = encode_update(update_of(model), model.network, scheme=scheme, wire_dtype=wire_dtype)
    return down, up


def milliseconds(work: Callable[[], object], repeats: int) -> float:
    work()
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return 1000 * statistics.median(seconds)


def measure(model: Model, scheme: Rule, wire_dtype: WireType, dense: int, repeats: int) -> Measurement:
    down, up = round_trip(model, scheme, wire_dtype)
    job, update = job_of(scheme, wire_dtype), update_of(model)
    times = {
        "encode down": milliseconds(lambda: encode_broadcast(model, job), repeats),
        "decode down": milliseconds(lambda: decode_broadcast(down), repeats),
        "encode up": milliseconds(
            lambda: encode_update(update, model.network, scheme=scheme, wire_dtype=wire_dtype), repeats
        ),
        "decode up": milliseconds(lambda: decode_update(up, model.network), repeats),
    }
    return Measurement(scheme, wire_dtype, len(down), len(up), (len(down) + len(up)) / dense, times)


def measure_difference(model: Model, dense: int, repeats: int) -> list[Measurement]:
    """Downloads for a device that holds the masks before an adjustment, and for one that holds the newest."""
    before = model.masks()
    exchange(model, 0.4)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        store.remember_network(model.network)
        store.remember_masks(before, mask_version(before))
        return [
            _measure_known(label, model, known, store, dense, repeats)
            for label, known in (("difference", before), ("no masks", model.masks()))
        ]


def _measure_known(
    label: str, model: Model, known: Masks, store: Store, dense: int, repeats: int
) -> Measurement:
    job, up = job_of("auto", "fp32"), round_trip(model, "auto", "fp32")[1]

    def encoded() -> bytes:
        return encode_broadcast(model, job, known=known, knows_network=True)

    down = encoded()
    times = {
        "encode down": milliseconds(encoded, repeats),
        "decode down": milliseconds(lambda: decode_broadcast(down, store), repeats),
    }
    return Measurement(label, "fp32", len(down), len(up), (len(down) + len(up)) / dense, times)


def exchange(model: Model, share: float) -> None:
    """Drop this share of the weights of every sparse layer, and grow as many, at random."""
    generator = np.random.default_rng(0)
    for name, layer in model.network.sparse_layers.items():
        positions, values = model.positions(name), model.values(name)
        count = int(share * values.size) if values.size < layer.size else 0
        pruned = np.flatnonzero(~unpack_bits(model.masks()[name], layer.size))
        kept = generator.permutation(values.size)[count:]
        grown = generator.choice(pruned, count, replace=False)
        now = np.concatenate([positions[kept], grown])
        order = np.argsort(now)
        model.assign(name, now[order], np.append(values[kept], np.zeros(count))[order])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=9, help="of each encode and decode")
    parser.add_argument("--sparsity", type=float, default=0.9)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    arguments = parser.parse_args()
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
        goal = next((goal for way, goal in GOALS.items() if way == (row.scheme, row.wire_dtype)), None)
        times = "  ".join(f"{name} {time:6.1f}" for name, time in row.milliseconds.items())
        print(
            f"{row.scheme:10} {row.wire_dtype}  down {row.bytes_down:>10,}  up {row.bytes_up:>10,}  "
            f"ratio {row.ratio:.4f} {f'(goal {goal})' if goal else '':13}  {times}"
        )


if __name__ == "__main__":
    main()
