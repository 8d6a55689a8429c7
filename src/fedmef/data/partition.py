"""Which device holds which samples: label skew after Dir(α), an even random split, or each user's own."""

import math

import numpy as np

from fedmef.errors import UserError
from fedmef.experiment.randomness import generator_for
from fedmef.sparsity.arrays import Array, Integers


def dirichlet_partition(labels: Integers, devices: int, alpha: float, seed: int) -> list[Integers]:
    """Sorted sample indices of each device: every sample once, and no device without one.

    Each class is spread over the devices in proportions drawn from Dir(α): the smaller α, the fewer
    devices share a class. A device that gets nothing is given a random sample of the largest device.
    """
    if not (math.isfinite(alpha) and alpha > 0):
        raise UserError(f"alpha = {alpha}: it must be a positive number; 0.5 is usual, 100 is nearly even")
    _check_devices(devices, len(labels))
    generator = generator_for(seed, "dirichlet partition")
    owners = np.empty(len(labels), dtype=np.int64)  # the device of each sample
    for label in np.unique(labels):
        samples = generator.permutation(np.flatnonzero(labels == label))
        proportions = generator.dirichlet(np.full(devices, alpha))
        ends = np.rint(proportions.cumsum() * len(samples)).astype(np.int64)
        ends[-1] = len(samples)
        owners[samples] = np.repeat(np.arange(devices), np.diff(ends, prepend=0))
    _fill_empty_devices(owners, devices, generator)
    return _indices_of_each(owners, devices)


def iid_partition(labels: Integers, devices: int, seed: int) -> list[Integers]:
    """Sorted sample indices of each device, random, with sizes that differ by one at most."""
    _check_devices(devices, len(labels))
    owners = np.arange(len(labels)) % devices
    generator_for(seed, "iid partition").shuffle(owners)
    return _indices_of_each(owners, devices)


def natural_partition(users: Array) -> list[Integers]:
    """Sorted sample indices of each user; the devices are the users in sorted order."""
    names, owners = np.unique(users, return_inverse=True)
    return _indices_of_each(owners, len(names))


def _check_devices(devices: int, samples: int) -> None:
    if not 1 <= devices <= samples:
        raise UserError(f"devices = {devices}: it must be in 1..{samples}, as there are {samples} samples")


def _fill_empty_devices(owners: Integers, devices: int, generator: np.random.Generator) -> None:
    counts = np.bincount(owners, minlength=devices)
    for empty in np.flatnonzero(counts == 0):
        largest = counts.argmax()
        owners[generator.choice(np.flatnonzero(owners == largest))] = empty
        counts[largest] -= 1
        counts[empty] = 1


def _indices_of_each(owners: Integers, devices: int) -> list[Integers]:
    by_device = np.argsort(owners, kind="stable")  # stable, so that each device's indices stay sorted
    ends = np.bincount(owners, minlength=devices).cumsum()
    return [indices.copy() for indices in np.split(by_device, ends[:-1])]
