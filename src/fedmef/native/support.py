"""Which networks the native kernels can execute, and why not the others."""

from collections import Counter

from fedmef.errors import NetworkError
from fedmef.native.forward import spatial
from fedmef.sparsity.network import Network
from fedmef.sparsity.operations import AdaptiveAveragePool, AveragePool, BatchNorm, Layer, MaxPool

LARGEST_POOL = 256  # elements: a byte says which one was the maximum
LARGEST_SIDE = 2**15  # of an image that is pooled


def obstacle(network: Network) -> str | None:  # noqa: PLR0911
    """What the kernels cannot do of a network, in words; the extension itself refuses a few more."""
    if network.opaque is not None:
        return f"'{network.opaque.name}' ({network.opaque.description}) needs the network's own PyTorch code"
    if wide := [name for name, spec in network.arrays.items() if spec.dtype == "float64"]:
        return f"'{wide[0]}' is float64"
    operations = network.operations
    users = Counter(user.module for user in operations if isinstance(user, Layer | BatchNorm))
    if shared := [module for module, count in users.items() if count > 1]:
        return f"'{shared[0]}' is used twice"
    if leaving := [layer.name for layer in network.layers.values() if layer.swat]:
        return f"'{leaving[0]}' leaves weights out of its forward pass (SWAT)"
    for pool in operations:
        if isinstance(pool, MaxPool) and pool.kernel[0] * pool.kernel[1] > LARGEST_POOL:
            return f"'{pool.name}' takes the maximum of more than {LARGEST_POOL} elements"
        if isinstance(pool, MaxPool | AveragePool | AdaptiveAveragePool):
            sides = spatial(network.shapes[pool.name])[1:] + spatial(network.shapes[pool.inputs[0]])[1:]
            if max(sides) > LARGEST_SIDE:
                return f"'{pool.name}' pools images of more than {LARGEST_SIDE} rows or columns"
    return None


def check(network: Network) -> None:
    """Raise `NetworkError` for a network with an obstacle."""
    if why := obstacle(network):
        raise NetworkError(f"the native kernels cannot execute this network: {why}")
