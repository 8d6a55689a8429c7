"""A model: a network and its arrays. What a server holds, a message brings and a checkpoint keeps."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedmef.errors import FedmefError, NetworkError, UserError
from fedmef.sparsity.arrays import Array, Bytes, Integers
from fedmef.sparsity.masks import active_positions, count_bits, mask_from_positions
from fedmef.sparsity.network import Network

State = dict[str, Array]  # the arrays by name
Masks = Mapping[str, Bytes]  # packed, by sparse layer


@dataclass(frozen=True, eq=False)
class Model:
    """A network and the state that it is in. Arrays are replaced, never changed: others may hold them."""

    network: Network
    state: State

    def masks(self) -> dict[str, Bytes]:
        """The packed masks of the sparse layers."""
        return {name: self.state[f"{name}.mask"] for name in self.network.sparse_layers}

    def active_counts(self) -> dict[str, int]:
        """`n_l`: active weights of every sparse layer, counted in the mask itself."""
        return {name: count_bits(mask) for name, mask in self.masks().items()}

    def positions(self, layer: str) -> Integers:
        """A sparse layer's active positions in its flattened weight, ascending."""
        return active_positions(self.state[f"{layer}.mask"], self.network.sparse_layers[layer].size)

    def values(self, layer: str) -> Array:
        """The weights at these positions."""
        return self.state[f"{layer}.values"]

    def assign(self, layer: str, positions: Integers, values: Array) -> None:
        """Make exactly these positions (ascending) of a sparse layer active, with these values."""
        if positions.size != values.size:
            raise UserError(f"{positions.size} positions but {values.size} values")
        size = self.network.sparse_layers[layer].size
        if (np.diff(positions) <= 0).any() or (
            positions.size and not 0 <= positions[0] <= positions[-1] < size
        ):
            raise FedmefError(f"positions of {layer} are not ascending, distinct and in range")
        kept = self.values(layer).dtype
        self.state[f"{layer}.mask"] = mask_from_positions(positions, size)
        self.state[f"{layer}.values"] = values.astype(kept)

    def center_filters(self, layer: str) -> None:
        """Take the mean of each filter's active weights away: what the layer computes stays the same.

        Only for layers that normalise, others are left alone. NSConv sees a weight's distance from that mean;
        with a mean of 0 this is the weight's magnitude, and growing at 0 hardly changes anything.
        """
        geometry, values = self.network.sparse_layers[layer], self.values(layer)
        if geometry.normalization is None:
            return
        filters = self.positions(layer) // geometry.filter_size
        lengths = np.bincount(filters, minlength=geometry.filters)
        sums = np.bincount(filters, values.astype(np.float64), minlength=geometry.filters)
        # A filter with a single weight is dead, and its mean is all that it is.
        means = np.where(lengths >= 2, sums / np.maximum(lengths, 1), 0.0)
        self.state[f"{layer}.values"] = (values - means[filters]).astype(values.dtype)


def check_state(network: Network, state: Mapping[str, Array]) -> None:
    """Raise `NetworkError` unless these are exactly the arrays of this network, masks and values agreeing."""
    if wrong := state.keys() ^ network.arrays.keys():
        raise NetworkError(f"the state or the network has no {min(wrong)}")
    for name, spec in network.arrays.items():
        array = state[name]
        if array.dtype != np.dtype(spec.dtype):
            raise NetworkError(f"{name} is of type {array.dtype} instead of {spec.dtype}")
        if spec.shape is not None and array.shape != spec.shape:
            raise NetworkError(f"{name} is of shape {list(array.shape)} instead of {list(spec.shape)}")
        if spec.role == "statistic" and name.endswith("running_var") and (array < 0).any():
            raise NetworkError(f"{name} has a negative variance")
    for name, layer in network.sparse_layers.items():
        mask, values = state[f"{name}.mask"], state[f"{name}.values"]
        active = active_positions(mask, layer.size).size
        if count_bits(mask) != active or values.shape != (active,):
            raise NetworkError(
                f"{name}.mask has {active} active positions but {name}.values has {values.size}: they do not "
                "belong together"
            )
