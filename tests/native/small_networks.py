"""Small valid networks, as JSON has them, that together use every operation."""

import json
from functools import cache
from typing import Any

from fedmef.sparsity.network import INPUT, Network
from fedmef.sparsity.operations import Shape
from tests.native.mutations import Table, repair

NORMALIZED = {"gain": True, "normalization": {"gamma": 0.9}}


@cache
def networks() -> list[Table]:
    """Networks as JSON has them, that together use every operation."""
    return [
        _network(
            (3, 7, 6),
            _layer("conv1", INPUT, (4, 3, 3, 3), stride=[2, 1], padding=[1, 1], sparse=True, **NORMALIZED),
            {"kind": "relu", "name": "relu", "inputs": ["conv1"]},
            _layer(
                "conv2", "relu", (6, 2, 2, 3), groups=2, dilation=[1, 2], padding=[1, 2], sparse=True,
                bias=True, cache={"sparsity": 0.7, "dtype": "fp16"},
            ),
            {"kind": "max_pool", "name": "pool", "inputs": ["conv2"], "kernel": [2, 3], "stride": [2, 2],
             "padding": [1, 1]},
            _classifier("pool", sparse=True, bias=True, cache={"sparsity": 0.5}, **NORMALIZED),
        ),
        _network(
            (2, 6, 6),
            _layer("conv1", INPUT, (8, 2, 3, 3), padding=[1, 1], sparse=True, cache={"sparsity": 0.9}),
            _norm("norm1", "conv1", 8),
            {"kind": "relu", "name": "relu1", "inputs": ["norm1"], "upper": 6.0},
            _layer("conv2", "relu1", (8, 8, 3, 3), padding=[1, 1], sparse=True,
                   cache={"sparsity": 0.8, "dtype": "bf16"}),
            _norm("norm2", "conv2", 8, affine=False),
            {"kind": "add", "name": "add", "inputs": ["norm2", "relu1"]},
            {"kind": "relu", "name": "relu2", "inputs": ["add"]},
            {"kind": "average_pool", "name": "pool", "inputs": ["relu2"], "kernel": [3, 3], "stride": [2, 2],
             "padding": [1, 1], "ceil_mode": True, "count_padding": False},
            _classifier("pool", bias=True),
        ),
        _network(
            (1, 5, 9),
            _layer("conv1", INPUT, (3, 1, 1, 5), padding=[0, 2]),
            _layer("conv2", INPUT, (2, 1, 3, 1), padding=[1, 0], sparse=True, bias=True),
            {"kind": "concatenate", "name": "both", "inputs": ["conv1", "conv2", "input"]},
            {"kind": "layer_norm", "name": "norm", "inputs": ["both"]},
            {"kind": "scale", "name": "scale", "inputs": ["norm"], "factor": 1.5},
            _layer("conv3", "scale", (5, 6, 1, 1), sparse=True, cache={"sparsity": 0.6}, **NORMALIZED),
            {"kind": "add", "name": "twice", "inputs": ["conv3", "conv3"]},
            {"kind": "adaptive_average_pool", "name": "pool", "inputs": ["twice"], "size": [2, 2]},
            _classifier("pool", sparse=True),
        ),
        _network(
            (4, 6, 5),
            _layer("conv1", INPUT, (4, 1, 3, 3), groups=4, stride=[2, 2], padding=[1, 1], sparse=True),
            _norm("norm", "conv1", 4),
            {"kind": "relu", "name": "relu", "inputs": ["norm"], "upper": 6.0},
            _layer("conv2", "relu", (150, 4, 1, 1), sparse=True, cache={"sparsity": 0.9}),
            _layer("conv3", "conv2", (4, 150, 1, 1), sparse=True, bias=True, **NORMALIZED),
            {"kind": "max_pool", "name": "pool", "inputs": ["conv3"], "kernel": [2, 2], "stride": [1, 1],
             "padding": [1, 1], "dilation": [2, 2]},
            _classifier("pool"),
        ),
    ]  # fmt: skip


@cache
def large_network() -> Table:
    """Enough elements for a pruned cache to be found by sampling."""
    return _network(
        (1, 56, 56),
        _layer("conv1", INPUT, (12, 1, 3, 3), padding=[1, 1], sparse=True),
        {"kind": "relu", "name": "relu", "inputs": ["conv1"]},
        _layer("conv2", "relu", (2, 12, 1, 1), sparse=True, cache={"sparsity": 0.9}, **NORMALIZED),
        {"kind": "adaptive_average_pool", "name": "pool", "inputs": ["conv2"], "size": [1, 1]},
        _classifier("pool"),
    )


def _network(shape: Shape, *operations: Any) -> Table:
    steps = [
        step
        for operation in operations
        for step in (operation if isinstance(operation, list) else [operation])
    ]
    means = {"mean": [0.5] * shape[0], "std": [0.25] * shape[0]}
    table = {"format": 1, "input": {"shape": list(shape), **means}, "operations": steps, "frozen": []}
    repair(table)
    Network.from_json(json.dumps(table).encode())
    return table


def _layer(name: str, source: str, shape: Shape, **settings: Any) -> Table:
    return {
        "kind": "convolution",
        "name": name,
        "inputs": [source],
        "module": name,
        "shape": list(shape),
        **settings,
    }


def _norm(name: str, source: str, channels: int, **settings: Any) -> Table:
    return {
        "kind": "batch_norm",
        "name": name,
        "inputs": [source],
        "module": name,
        "channels": channels,
        **settings,
    }


def _classifier(source: str, **settings: Any) -> list[Table]:
    return [
        {"kind": "flatten", "name": "flat", "inputs": [source]},
        {
            "kind": "linear",
            "name": "classifier",
            "inputs": ["flat"],
            "module": "classifier",
            "shape": [3, 1],
            **settings,
        },
    ]
