"""FL-PQSU (Xu et al. 2021, https://doi.org/10.1109/ACCESS.2021.3063291): pruned once, before training."""

from fedmef.methods.base import Method, Recipe


class FLPQSU(Method):
    """A static sparse network with BatchNorm: the weights of largest initial magnitude (L1) stay."""

    recipe = Recipe(masks="magnitude")
