"""What Flower's SecAgg+ would cost our updates: bytes and seconds of a device, seconds of the server, error.

A round of its four exchanges, with Flower's own `secaggplus_mod` on every device, all in one process, and the
server's arithmetic of its `SecAggPlusWorkflow`. The updates are a sparse ResNet18's active values. Bytes
are those of a message's content, seconds are CPU time; both are medians over the devices. How many bits of a
mask's seed matter is counted as well: the masks are all that hides an update.

    python benchmarks/secure_aggregation.py [--devices 10] [--sparsity 0.9] [--json]
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitRes, Status, bytes_to_ndarray, ndarrays_to_parameters
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.ndarrays_arithmetic import factor_extract
from flwr.common.secure_aggregation.quantization import dequantize
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.common.serde import recorddict_to_proto
from flwr.compat.common.recorddict_compat import fitres_to_recorddict
from flwr.supercore.task_identity import TaskIdentity

sys.path.insert(0, str(Path(__file__).parents[1]))  # before opacus's package of the same name

from benchmarks.wire import network, round_trip
from fedmef.sparsity.arrays import Array

CLIP, LEVELS, MODULUS = 8.0, 2**22, 2**32  # Flower's defaults


def content_bytes(message: Message) -> int:
    return int(recorddict_to_proto(message.content).ByteSize())


class Fleet:
    """Devices that take part in the exchanges, and what that cost each."""

    def __init__(self, updates: list[list[Array]]) -> None:
        self.updates = updates
        self.contexts = [Context(1, node, {}, RecordDict(), {}) for node in range(1, len(updates) + 1)]
        self.up = [0] * len(updates)
        self.down = [0] * len(updates)
        self.seconds = [0.0] * len(updates)

    def exchange(self, stage: str, configs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """A message to each device, and what it answers."""
        answers = []
        for device, config in enumerate(configs):
            content = RecordDict({RECORD_KEY_CONFIGS: ConfigRecord({Key.STAGE: stage, **config})})
            message = Message(content, device + 1, "train")
            self.down[device] += content_bytes(message)
            arrays = self.updates[device]

            def train(message: Message, _: Context, arrays: list[Array] = arrays) -> Message:
                result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters(arrays), 100, {})
                return Message(fitres_to_recorddict(result, True), reply_to=message)

            start = time.process_time()
            reply = secaggplus_mod(message, self.contexts[device], train)
            self.seconds[device] += time.process_time() - start
            self.up[device] += content_bytes(reply)
            answers.append(dict(reply.content.config_records[RECORD_KEY_CONFIGS]))
        return answers


def aggregate(fleet: Fleet) -> tuple[list[Array], float]:
    """The mean of the devices' arrays, as the server learns it, and its CPU seconds."""
    count = len(fleet.updates)
    nodes = range(1, count + 1)
    setup = {
        Key.SAMPLE_NUMBER: count,
        Key.SHARE_NUMBER: count,
        Key.THRESHOLD: count // 2 + 1,
        Key.CLIPPING_RANGE: CLIP,
        Key.TARGET_RANGE: LEVELS,
        Key.MOD_RANGE: MODULUS,
        Key.MAX_WEIGHT: 1000.0,
    }
    keys = fleet.exchange(Stage.SETUP, [setup] * count)
    public = (Key.PUBLIC_KEY_1, Key.PUBLIC_KEY_2)
    known = {str(node): [keys[node - 1][name] for name in public] for node in nodes}
    shared = fleet.exchange(Stage.SHARE_KEYS, [known] * count)
    sources: dict[int, list[int]] = {node: [] for node in nodes}
    texts: dict[int, list[bytes]] = {node: [] for node in nodes}
    for source, record in zip(nodes, shared, strict=True):
        for target, text in zip(record[Key.DESTINATION_LIST], record[Key.CIPHERTEXT_LIST], strict=True):
            sources[target].append(source)
            texts[target].append(text)
    forwarded = [{Key.CIPHERTEXT_LIST: texts[node], Key.SOURCE_LIST: sources[node]} for node in nodes]
    masked = fleet.exchange(Stage.COLLECT_MASKED_VECTORS, forwarded)
    all_there = {Key.ACTIVE_NODE_ID_LIST: list(nodes), Key.DEAD_NODE_ID_LIST: []}
    opened = fleet.exchange(Stage.UNMASK, [all_there] * count)
    start = time.process_time()
    vectors = [[bytes_to_ndarray(text) for text in record[Key.MASKED_PARAMETERS]] for record in masked]
    total = [np.sum(arrays, axis=0) for arrays in zip(*vectors, strict=True)]
    for index in range(count):
        seed = combine_shares([record[Key.SHARE_LIST][index] for record in opened])
        masks = pseudo_rand_gen(seed, MODULUS, [array.shape for array in total])
        total = [array - mask for array, mask in zip(total, masks, strict=True)]
    weight, values = factor_extract([array & (MODULUS - 1) for array in total])
    mean = [(array - (count - 1) * CLIP) * (LEVELS / weight) for array in dequantize(values, CLIP, LEVELS)]
    return mean, time.process_time() - start


def seed_bits() -> int:
    """How many of the 256 bits of a mask's seed matter: 32 if folding it to 32 changes nothing."""
    seed = os.urandom(32)
    folded = 0
    for start in range(0, len(seed), 4):
        folded ^= int.from_bytes(seed[start : start + 4], "little")
    one, other = (pseudo_rand_gen(bits, MODULUS, [(8,)])[0] for bits in (seed, folded.to_bytes(4, "little")))
    return 32 if np.array_equal(one, other) else 256


def main() -> None:
    parser = argparse.ArgumentParser(description="SecAgg+ with sparse updates: bytes, seconds, error.")
    parser.add_argument("--devices", type=int, default=10)
    parser.add_argument("--sparsity", type=float, default=0.9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for name in ("task_id", "run_id", "node_id"):
        setattr(TaskIdentity, f"_{name}", 1)  # Flower's messages carry who sends them
    model = network(options.sparsity)
    arrays = [model.state[name].astype(np.float64) for name in model.network.floats]
    random = np.random.default_rng(0)
    updates = [
        [array + random.normal(0, 0.01, array.shape) for array in arrays] for _ in range(options.devices)
    ]
    fleet = Fleet(updates)
    mean, server = aggregate(fleet)
    plain = [np.mean(group, axis=0) for group in zip(*updates, strict=True)]
    result = {
        "values": sum(array.size for array in arrays),
        "fp32_bytes": len(round_trip(model, "auto", "fp32")[1]),
        "fp16_bytes": len(round_trip(model, "auto", "fp16")[1]),
        "secagg_bytes_up": round(statistics.median(fleet.up)),
        "secagg_bytes_down_more": round(statistics.median(fleet.down)),
        "device_seconds": round(statistics.median(fleet.seconds), 2),
        "server_seconds": round(server, 2),
        "largest_error": max(float(np.abs(a - b).max()) for a, b in zip(mean, plain, strict=True)),
        "seed_bits": seed_bits(),
    }
    if options.json:
        print(json.dumps(result))
        return
    print(*(f"{name} {value}" for name, value in result.items()), sep="   ")


if __name__ == "__main__":
    main()
