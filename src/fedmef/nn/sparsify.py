"""Ordinary models in, sparse models out: swaps the layers of any convolutional network."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from fedmef.errors import ConversionError, SparsityError, UserError
from fedmef.experiment.randomness import generator_for
from fedmef.nn.batchnorm import guard_batchnorm
from fedmef.nn.features import normalize_features
from fedmef.nn.functionals import save_memory_in_functionals
from fedmef.nn.graph import BATCHNORMS, NetworkGraph, trace_network
from fedmef.nn.layers import SparseConv2d, SparseLinear
from fedmef.nn.normalization import Scaling
from fedmef.nn.pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from fedmef.nn.relu import ReLU, ReLU6
from fedmef.sparsity import Distribution, layer_counts, magnitude_mask, random_mask
from fedmef.sparsity.arrays import Bytes
from fedmef.sparsity.masks import enliven

Initialization = Literal["random", "magnitude"]


def sparsify(
    model: nn.Module,
    *,
    sparsity: float = 0.9,
    normalize: bool = False,
    activation_sparsity: float = 0.0,
    cache_dtype: torch.dtype | None = None,
    seed: int = 0,
    keep_dense: Iterable[str] | None = None,
    skip: Iterable[str] = (),
    distribution: Distribution = "uniform",
    initialization: Initialization = "random",
    gamma: float = 1.0,
    scaling: Scaling = "filter",
    affine: bool = False,
    compact_activations: bool = True,
    consume: bool = False,
) -> nn.Module:
    """Make a network really sparse, in place, and return it.

    Works for networks of Conv2d, Linear, BatchNorm, ReLU, ReLU6, pooling and residual sums, whoever wrote
    them, with modules or with `F.relu` and the like. The model is checked first: an error changes nothing.

    Args:
        model: the network; its weights at the active positions are kept.
        sparsity: share of the weights of sparse layers that is pruned.
        normalize: convolutions and hidden linear layers become NSConv, and the BatchNorms that they feed go
            away. They have no bias, unless `affine`: its steps would be large against outputs that are small.
            The classifier's filters are not normalised: its logits must be free to grow. Its input is,
            image by image (`fedmef.nn.features`), unless the network does so itself.
        activation_sparsity: share of a layer's input that is forgotten before the rest is kept for the
            backward pass. The first convolution's and the classifier's inputs are kept whole.
        cache_dtype: how the kept part is stored, for example `torch.float16` (default: as it is).
        seed: decides the random masks.
        keep_dense: names (or patterns such as "layer4.*") of layers whose weights all stay; by default those
            of `dense_by_default(model)`. An empty list makes every layer sparse.
        skip: names or patterns of modules that are left exactly as they are.
        distribution: "uniform" (the same density everywhere) or "erk".
        initialization: "random" positions, or those of largest "magnitude".
        gamma, scaling, affine: see `SparseConv2d`.
        compact_activations: ReLU and pooling keep a bit or a byte an element for the backward pass, or
            nothing, instead of whole tensors; what they compute stays the same.
        consume: let go of each dense weight as soon as its sparse layer is there, for a device that cannot
            hold both networks; an error then leaves the model without weights.

    Raises:
        UserError: names what cannot be converted, and what to do about it.
    """
    if initialization not in get_args(Initialization):
        raise UserError(f"initialization = '{initialization}': must be 'random' or 'magnitude'")
    skipped = _Names(skip, model, "skip")
    modules = {name: module for name, module in model.named_modules() if not skipped.match(name)}
    _check_dense(modules)
    graph = trace_network(model, skipped.match)
    _check_convertible(modules, graph)
    if not graph.layers:
        raise UserError(f"sparsify found no convolution or linear layer in {type(model).__name__}")

    first, classifier = graph.layers[0], graph.layers[-1]
    keep_dense = _dense_by_default(graph, modules) if keep_dense is None else keep_dense
    dense = _Names(keep_dense, model, "keep_dense")
    layers = {name: modules[name] for name in graph.layers if name in modules}
    shapes = {name: _weight(layer).shape for name, layer in layers.items() if not dense.match(name)}
    counts = layer_counts(shapes, sparsity, distribution, least=2)
    if starved := [name for name, count in counts.items() if count == 0]:
        raise SparsityError(
            f"sparsity = {sparsity}: leaves no weight in '{starved[0]}'; lower it, or add to keep_dense"
        )

    classifier_shape = tuple(_weight(model.get_submodule(classifier)).shape)
    normalization: dict[str, Any] = {}
    if normalize:
        normalization = {"normalize": True, "gamma": gamma, "scaling": scaling, "affine": affine}
    replacements: dict[str, nn.Module] = {}  # all built before one goes in: an error changes nothing
    for name, layer in layers.items():
        kept_whole = name in (first, classifier)
        cache_sparsity = 0.0 if kept_whole else activation_sparsity
        if name not in counts and (name == classifier or not (normalize or cache_sparsity)):
            continue
        count = counts.get(name, _weight(layer).numel())
        mask = _initial_mask(layer, count, initialization, generator_for(seed, "mask", name))
        if normalize and name != classifier:
            _check_filters(name, layer)
        cache = {"activation_sparsity": cache_sparsity, "cache_dtype": cache_dtype}
        options = cache | ({} if name == classifier else normalization)
        replacements[name] = _sparse(layer, mask, options, consume)

    normalized = replacements.keys() - {classifier} if normalize else set()
    for name, feeding in graph.feeds.items():
        if name in modules and feeding and feeding <= normalized:
            replacements[name] = nn.Identity()
    for name, replacement in replacements.items():
        _replace(model, name, replacement)
    if normalize:
        _normalize_features(model, graph, skipped, classifier_shape)
        not_in_place(modules.values())
    if compact_activations:
        left_alone = [module for name, module in model.named_modules() if skipped.match(name)]
        _compact_activations(model, modules, left_alone if graph.functionals else None)
    return guard_batchnorm(model)


def dense_by_default(model: nn.Module) -> list[str]:
    """The layers that `sparsify` keeps dense: the first convolution, depthwise ones, and the classifier."""
    graph = trace_network(model, lambda name: False)
    return _dense_by_default(graph, dict(model.named_modules()))


def _dense_by_default(graph: NetworkGraph, modules: dict[str, nn.Module]) -> list[str]:
    def stays(name: str) -> bool:
        layer = modules[name]
        depthwise = isinstance(layer, nn.Conv2d) and layer.groups > 1 and layer.groups == layer.in_channels
        return depthwise or name in (graph.layers[0], graph.layers[-1])

    return [name for name in graph.layers if name in modules and stays(name)]


def _check_dense(modules: dict[str, nn.Module]) -> None:
    for name, module in modules.items():
        if isinstance(module, SparseConv2d):
            raise UserError(f"sparsify cannot convert '{name}': it is sparse already")


def _check_convertible(modules: dict[str, nn.Module], graph: NetworkGraph) -> None:
    problems = {
        name: problem for name, module in modules.items() if (problem := _problem(name, module, graph))
    }
    if problems:
        named = [
            f"'{name}' ({type(modules[name]).__name__}): {problem}" for name, problem in problems.items()
        ]
        raise ConversionError(
            f"sparsify cannot convert {'; '.join(named)}; skip={list(problems)} leaves that as it is"
        )
    owners: dict[int, str] = {}
    for name, layer in modules.items():
        if isinstance(layer, nn.Conv2d | nn.Linear) and owners.setdefault(id(layer.weight), name) != name:
            raise ConversionError(
                f"sparsify cannot convert '{name}': it shares its weight with '{owners[id(layer.weight)]}'; "
                f"call one module twice instead, or skip both"
            )


def _problem(name: str, module: nn.Module, graph: NetworkGraph) -> str | None:  # noqa: PLR0911
    known = next((kind for kind in (nn.Conv2d, nn.Linear, *BATCHNORMS) if isinstance(module, kind)), None)
    if known is None:
        has_own = any(True for _ in module.parameters(recurse=False))
        return "it has parameters of its own of an unknown kind" if has_own else None
    if type(module).forward is not known.forward and not isinstance(module, BATCHNORMS):
        return "its class has a forward() of its own"
    if is_parametrized(module) or (known in (nn.Conv2d, nn.Linear) and "weight" not in module._parameters):
        return "its weight is parametrised"
    if name not in graph.layers and name not in graph.feeds:
        return "forward() never calls it"
    if isinstance(module, nn.Conv2d):
        if module.padding_mode != "zeros":
            return f"padding_mode='{module.padding_mode}' is not supported"
        if module.padding == "same" and any(
            dilation * (kernel - 1) % 2
            for dilation, kernel in zip(module.dilation, module.kernel_size, strict=True)
        ):
            return "padding='same' with an even kernel pads one side more"
    return None


def _check_filters(name: str, layer: nn.Module) -> None:
    """NSConv needs two weights in a filter."""
    if _weight(layer)[0].numel() < 2:
        raise ConversionError(
            f"sparsify cannot normalise '{name}' ({type(layer).__name__}): its filters have one weight each; "
            f"skip=['{name}'] leaves it as it is"
        )


def _initial_mask(
    layer: nn.Module, count: int, initialization: Initialization, generator: np.random.Generator
) -> Bytes:
    weight = _weight(layer)
    if initialization == "magnitude":
        return magnitude_mask(weight.detach().cpu().numpy(), count)
    mask = random_mask(weight.numel(), count, generator)
    return enliven(mask, (len(weight), weight[0].numel()), generator)


def _normalize_features(
    model: nn.Module, graph: NetworkGraph, skipped: "_Names", shape: Sequence[int]
) -> None:
    """Let the classifier normalise its input, unless the network does so itself or has no other layer."""
    modules = dict(model.named_modules())
    kinds = [type(modules[name]).__name__ if name in modules else name for name in graph.before_classifier]
    classifier = graph.layers[-1]
    if len(graph.layers) > 1 and not skipped.match(classifier) and "norm" not in " ".join(kinds).lower():
        normalize_features(modules[classifier], shape)


def _sparse(layer: nn.Module, packed: Bytes, options: dict[str, Any], consume: bool) -> SparseConv2d:
    mask = torch.from_numpy(packed)
    if isinstance(layer, nn.Conv2d):
        sparse = SparseConv2d.from_conv2d(layer, mask, **options)
    else:
        assert isinstance(layer, nn.Linear)
        sparse = SparseLinear.from_linear(layer, mask, **options)
    if consume:
        _weight(layer).data = torch.empty(0)
    return sparse


def _compact_activations(
    model: nn.Module, modules: dict[str, nn.Module], left_alone: list[nn.Module] | None
) -> None:
    """Modules are swapped; functional calls, if there are any, are answered but in modules left alone."""
    for name, module in modules.items():
        if type(module) is nn.ReLU:
            _replace(model, name, ReLU())
        elif type(module) is nn.ReLU6:
            _replace(model, name, ReLU6())
        elif type(module) is nn.MaxPool2d and not module.return_indices:
            module.__class__ = MaxPool2d
        elif type(module) is nn.AvgPool2d:
            module.__class__ = AvgPool2d
        elif type(module) is nn.AdaptiveAvgPool2d:
            module.__class__ = AdaptiveAvgPool2d
    if left_alone is not None:
        save_memory_in_functionals(model, left_alone)


def not_in_place(modules: Iterable[nn.Module]) -> None:
    """Where a BatchNorm went away, its input may be needed again."""
    for module in modules:
        if isinstance(getattr(module, "inplace", None), bool):
            module.inplace = False  # type: ignore[assignment]


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    old = model.get_submodule(name)
    module.train(old.training)
    # One module may have several names, such as a ReLU that is written once and used in many places.
    for alias in [alias for alias, other in model.named_modules(remove_duplicate=False) if other is old]:
        parent, _, child = alias.rpartition(".")
        setattr(model.get_submodule(parent), child, module)


def _weight(layer: nn.Module) -> torch.Tensor:
    assert isinstance(layer.weight, torch.Tensor)
    return layer.weight


class _Names:
    """Names or patterns of modules; each must match something, so that a typing error is noticed."""

    def __init__(self, patterns: Iterable[str], model: nn.Module, argument: str) -> None:
        self.patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
        names = [name for name, _ in model.named_modules()]
        for pattern in self.patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise UserError(f"{argument}: no module of {type(model).__name__} matches '{pattern}'")

    def match(self, name: str) -> bool:
        """Whether a pattern names this module or one that contains it."""
        parts = name.split(".")
        prefixes = [".".join(parts[: end + 1]) for end in range(len(parts))]
        return any(fnmatchcase(prefix, pattern) for prefix in prefixes for pattern in self.patterns)
