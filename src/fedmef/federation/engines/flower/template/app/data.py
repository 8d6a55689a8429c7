"""Your data: the function to change. What is here trains on handwritten digits."""

from fedmef.data import Dataset, Split, load_dataset

SHARES = 10  # into which the digits are divided, to have something for each device


def load_data(partition_id: int | None = None) -> Dataset:
    """YOUR DATA. On the server, `partition_id` is None: `test` scores the global model.

    The mean and standard deviation of `train` (or `known_statistics`, if you give them) normalise the images
    on every device. On a device that has no data of its own, `partition_id` is its number, and it trains on
    `train`.
    Images are NumPy arrays of uint8 [N, C, H, W], labels of int64 [N].
    """
    digits = load_dataset("digits")
    train = digits.train
    if partition_id is not None:
        train = Split(train.images[partition_id::SHARES], train.labels[partition_id::SHARES])
    return Dataset("digits", train, digits.test, classes=10)
