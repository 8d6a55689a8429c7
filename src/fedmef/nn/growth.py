"""Growth scores: the largest gradients at pruned positions, one layer's dense gradient at a time.

What a device does in an adjustment round, after its last local step:

    with growth_scores(model, {"layer1.conv1": 20, ...}) as scores:
        loss_function(model(images), labels).backward()
    scores["layer1.conv1"].positions, scores["layer1.conv1"].gradients  # NumPy arrays
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from torch import Tensor, nn

from fedmef.errors import FedmefError, UserError
from fedmef.nn.layers import sparse_layers
from fedmef.nn.relu import passing_at_zero
from fedmef.nn.topk import largest_magnitudes
from fedmef.sparsity.growth import GrowthScores


@contextmanager
def growth_scores(model: nn.Module, counts: Mapping[str, int]) -> Iterator[dict[str, GrowthScores]]:
    """Collect, for one forward and backward pass inside the block, `counts[name]` scores of each named layer.

    A pruned weight's gradient is that of the convolving weight times its filter's scale (the true gradient of
    a pruned θ is zero). A layer gives fewer scores when fewer of its pruned positions have any gradient.
    """
    layers = sparse_layers(model)
    if unknown := sorted(counts.keys() - layers.keys()):
        raise UserError(f"growth_scores: no sparse layer is called '{unknown[0]}'")
    scores: dict[str, GrowthScores] = {}

    def observe(name: str, gradient: Tensor) -> None:
        if name in scores:
            raise FedmefError(
                f"{name} took part twice in one pass: its gradients cannot be compared one at a time"
            )
        positions = largest_magnitudes(gradient, counts[name])
        chosen = gradient.index_select(0, positions)
        scores[name] = GrowthScores(positions.cpu().numpy(), chosen.cpu().numpy())

    try:
        for name in counts:
            layers[name].observe_growth = partial(observe, name)
        with passing_at_zero():
            yield scores
    finally:
        for name in counts:
            layers[name].observe_growth = None
