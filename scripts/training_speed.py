"""How fast NSConv learns next to BatchNorm, without a federation: some hundred steps on CIFAR-10.

Federated runs are noisy and slow; this takes half a minute a row and says what a setting does to the training
itself. Every row has the same weights at the start, the same batches of 64 and a learning rate that falls to
0.08 of its first value, as in the paper.

How to read it: `test` is the accuracy on all test images after the last step. One seed: differences below a
point mean nothing.

    python scripts/training_speed.py --data-dir DIR --steps 300
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

from fedmef.data import Dataset
from fedmef.device.backend import backend_for
from fedmef.device.batches import epoch
from fedmef.errors import FedmefError
from fedmef.experiment.randomness import generator_for
from fedmef.experiment.settings import Experiment, make_experiment
from fedmef.federation.evaluation import evaluate
from fedmef.federation.preparation import open_dataset
from fedmef.models.initial import initial_model

FINAL_RATE = 0.08
COMMON = {"dataset": "cifar10", "model": "resnet18", "width": 16, "stem": "strided", "batch_size": 64}
BATCHNORM = {"method": "fedtiny", "learning_rate": 0.3}
NSCONV = {"method": "fedmef", "learning_rate": 1.0}
ERK = {"distribution": "erk"}
ROWS = {
    "BatchNorm, uniform density": BATCHNORM,
    "BatchNorm, ERK": {**BATCHNORM, **ERK},
    "BatchNorm, dense": {"method": "fedavg", "learning_rate": 0.3, "sparsity": 0.0},
    "NSConv, uniform density": NSCONV,
    "NSConv, ERK": {**NSCONV, **ERK},
    "NSConv, ERK, s_a = 0": {**NSCONV, **ERK, "activation_sparsity": 0.0},
    "NSConv, ERK, rate 0.3": {**NSCONV, **ERK, "learning_rate": 0.3},
    "NSConv, ERK, gamma 1.41, rate 0.3": {**NSCONV, **ERK, "learning_rate": 0.3, "gamma": 2**0.5},
    "NSConv, ERK, affine": {**NSCONV, **ERK, "affine": True},
    "NSConv, dense": {"method": "fedavg_sap", "learning_rate": 1.0, "sparsity": 0.0},
    "NSConv, dense, s_a = 0": {
        "method": "fedavg_sap",
        "learning_rate": 1.0,
        "sparsity": 0.0,
        "activation_sparsity": 0.0,
    },
}


def train(experiment: Experiment, dataset: Dataset, steps: int) -> float:
    """Test accuracy after so many steps."""
    model = initial_model(experiment, dataset.shape, dataset.classes, dataset.statistics)
    backend = backend_for(experiment, model.network)
    backend.load(model.state)
    train, everything = dataset.train, np.arange(len(dataset.train))
    generator = generator_for(experiment.seed, "batches")
    step = 0
    while step < steps:
        for chosen in epoch(everything, experiment.batch_size, experiment.left_over, generator):
            if step == steps:
                break
            images, labels = train.images[chosen], train.labels[chosen]
            backend.step(images, labels, experiment.learning_rate * FINAL_RATE ** (step / steps))
            step += 1
    return evaluate(backend, backend.state(), dataset.test).accuracy


def main() -> None:
    """A line for each row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, help="folder of the data sets")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", default="", help="only rows with this in their name")
    parser.add_argument("--json", action="store_true", help="a JSON object a row instead of text")
    arguments = parser.parse_args()
    common = {**COMMON, "data_dir": arguments.data_dir, "seed": arguments.seed}
    rows = {name: own for name, own in ROWS.items() if arguments.rows in name}
    if not rows:
        parser.error(f"--rows {arguments.rows}: is in no row's name; the rows are: {'; '.join(ROWS)}")
    try:
        dataset = open_dataset(make_experiment(common))
    except FedmefError as error:
        sys.exit(f"{parser.prog}: {error}")
    for name, own in rows.items():
        start = time.process_time()
        accuracy = train(make_experiment({**common, **own}), dataset, arguments.steps)
        seconds = time.process_time() - start
        if arguments.json:
            facts = {"row": name, "steps": arguments.steps, "seed": arguments.seed}
            print(json.dumps({**facts, "test_accuracy": accuracy, "cpu_seconds": seconds}), flush=True)
        else:
            print(f"{name:36} test {100 * accuracy:5.1f} %   {seconds:4.0f} s of a core", flush=True)


if __name__ == "__main__":
    main()
