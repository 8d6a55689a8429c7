"""A network of eight weights, and records with numbers that a reader can check in the head."""

from typing import Any

import numpy as np

from fedmef.runs.records import Round, Summary
from fedmef.sparsity.masks import mask_from_positions
from fedmef.sparsity.model import Model, State
from fedmef.sparsity.network import Input, Network
from fedmef.sparsity.operations import Flatten, Linear

# Images of one row of four pixels, two classes; two of the eight weights are active.
NETWORK = Network(
    Input((1, 1, 4), (0.5,), (0.25,)),
    (
        Flatten(name="flat", inputs=("input",)),
        Linear(name="out", inputs=("flat",), module="out", shape=(2, 4), sparse=True, bias=True),
    ),
)


def a_state(value: float = 1.0) -> State:
    return {
        "out.values": np.array([value, 2.0], dtype=np.float32),
        "out.mask": mask_from_positions(np.array([0, 5]), 8),
        "out.bias": np.zeros(2, dtype=np.float32),
    }


def a_model(value: float = 1.0) -> Model:
    return Model(NETWORK, a_state(value))


def a_round(number: int = 0, **changes: Any) -> Round:
    record: dict[str, Any] = {
        "round": number,
        "train_loss": 1.0,
        "test_accuracy": 0.5,
        "test_loss": 1.5,
        "learning_rate": 0.1,
        "bytes_down": 300,
        "bytes_up": 100,
        "seconds": 2.0,
        "devices": [0, 1],
        "device_reports": [],
        "lost": [],
        "rejected": [],
        "attempts": 1,
        "epsilon": None,
        "active_weights": 2,
        "adjusted": False,
        "accuracy_before_adjustment": None,
        "accuracy_after_adjustment": None,
        "exchanged_weights": None,
        "dropped_magnitude": None,
    }
    return Round(**{**record, **changes})


def a_summary(**changes: Any) -> Summary:
    summary: dict[str, Any] = {
        "test_accuracy": 0.5,
        "best_test_accuracy": 0.5,
        "test_loss": 1.5,
        "rounds": 1,
        "adjustments": 0,
        "bytes_down": 300,
        "bytes_up": 100,
        "seconds": 2.0,
        "lost_updates": 0,
        "rejected_updates": 0,
        "repeated_attempts": 0,
        "epsilon": None,
        "parameters": 4,
        "parameters_if_dense": 10,
        "layers": {"out": {"active": 2, "size": 8}},
        "classes": 2,
        "image_shape": [1, 1, 4],
        "fedmef": "0.1.0",
        "torch": "2.13.0",
    }
    return Summary(**{**summary, **changes})
