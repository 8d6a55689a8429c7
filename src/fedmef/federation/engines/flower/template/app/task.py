"""Your network and your data: the two functions to change. What is here trains on handwritten digits."""

from torch import nn

from fedmef.data import Dataset, Split, load_dataset
from fedmef.models import small_cnn

SHARES = 10  # into which the digits are divided, to have something for each device


def load_model(classes: int, channels: int) -> nn.Module:
    """YOUR NETWORK, an ordinary one: convolutions, BatchNorm, ReLU, pooling, sums. fedmef makes it sparse."""
    return small_cnn(classes=classes, channels=channels, width=16)


def load_data(partition_id: int | None = None) -> Dataset:
    """YOUR DATA. On a device, `partition_id` is its number: `train` is what it has, and `test` is not used.

    On the server it is None: `test` scores the global model, and `train` is not used, but must not be empty:
    give `test` again. Images are uint8 [N, C, H, W], labels int64 [N]. Give the same `known_statistics` (mean
    and standard deviation of each channel, pixels from 0 to 1) everywhere, or each normalises with its own.
    """
    digits = load_dataset("digits")
    train = digits.train
    if partition_id is not None:
        train = Split(train.images[partition_id::SHARES], train.labels[partition_id::SHARES])
    return Dataset("digits", train, digits.test, classes=10, known_statistics=digits.statistics())
