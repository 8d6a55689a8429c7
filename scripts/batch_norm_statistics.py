"""What a federation's averaged BatchNorm statistics cost: test accuracy with them, and with new ones.

    python scripts/batch_norm_statistics.py RUN [RUN ...]

RUN is a finished run with its model. The new statistics are those of 5,000 training images of all
devices, which no server has: this says where accuracy is lost, and is no method.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

import fedmef
from fedmef.data import Dataset
from fedmef.errors import UserError
from fedmef.federation.preparation import open_dataset
from fedmef.runs.directory import read_finished

IMAGES, BATCH = 5000, 500


def accuracy(model: nn.Module, dataset: Dataset) -> float:
    """On the test images, in %."""
    model.eval()
    right, labels = 0, dataset.test.labels
    with torch.no_grad():
        for begin in range(0, len(labels), BATCH):
            logits = model(torch.from_numpy(np.array(dataset.test.images[begin : begin + BATCH])))
            right += int((logits.argmax(1).numpy() == labels[begin : begin + BATCH]).sum())
    return 100 * right / len(labels)


def make_statistics(model: nn.Module, dataset: Dataset) -> bool:
    """Replace the statistics of every BatchNorm layer; returns whether there is one."""
    layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a plain mean over batches
        layer.train()
    if not layers:
        return False
    there = len(dataset.train.labels)
    chosen = np.random.default_rng(0).choice(there, min(IMAGES, there), replace=False)
    with torch.no_grad():
        for begin in range(0, len(chosen), BATCH):
            model(torch.from_numpy(dataset.train.images[np.sort(chosen[begin : begin + BATCH])]))
    return True


def main() -> None:
    """A line for each run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    for path in parser.parse_args().runs:
        try:
            run, model = read_finished(path), fedmef.load(path)
            dataset = open_dataset(run.experiment)
        except UserError as error:
            parser.error(str(error))
        changed = make_statistics(model, dataset)
        after = f"with new statistics {accuracy(model, dataset):.2f} %" if changed else "without BatchNorm"
        print(f"{path}: {100 * run.summary.test_accuracy:.2f} %, {after}", flush=True)


if __name__ == "__main__":
    main()
