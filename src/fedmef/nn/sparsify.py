"""Ordinary models in, sparse models out: swaps the layers of any convolutional network."""

import copy
import dataclasses
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from fedmef.errors import ConversionError, SparsityError, UserError
from fedmef.experiment.randomness import generator_for
from fedmef.nn.batchnorm import guard_batchnorm
from fedmef.nn.check import check_by_function
from fedmef.nn.conversion import Conversion, attach, kept_bytes
from fedmef.nn.dropout import Dropout
from fedmef.nn.example import Example, follow, run_once
from fedmef.nn.features import normalize_features
from fedmef.nn.functionals import Saving, save_memory_in_functionals
from fedmef.nn.graph import BATCHNORMS, LAYERS, NetworkGraph, is_plain_layer, is_plain_norm
from fedmef.nn.layers import SparseConv2d, SparseLinear, symmetric_padding
from fedmef.nn.normalization import Scaling
from fedmef.nn.own_layer import with_own_code
from fedmef.nn.pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from fedmef.nn.relu import LeakyReLU, ReLU, ReLU6
from fedmef.nn.smooth import SMOOTH, Smooth
from fedmef.nn.unchanged import unchanged_on_error
from fedmef.nn.without_norm import without_norm
from fedmef.sparsity import Distribution, layer_counts, magnitude_mask, random_mask
from fedmef.sparsity.arrays import Bytes
from fedmef.sparsity.masks import enliven

Initialization = Literal["random", "magnitude"]

_PARAMETRISED = "its weight is parametrised"


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
    first: Iterable[str] | None = None,
    last: Iterable[str] | None = None,
    distribution: Distribution = "uniform",
    initialization: Initialization = "random",
    gamma: float = 1.0,
    scaling: Scaling = "filter",
    affine: bool = False,
    compact_activations: bool = True,
    consume: bool = False,
    example: Tensor | Sequence[Any] | None = None,
    check: bool | None = None,
    quiet: bool = False,
) -> nn.Module:
    """Make a network really sparse, in place, and return it.

    Works for networks of Conv2d, Linear, BatchNorm, activations, pooling and residual sums, whoever wrote
    them, with modules or with `F.relu` and the like. What it does not know stays as it is and is listed. An
    error leaves the model as it was. What was achieved is printed; `fedmef.nn.conversion_of(model)` has it.

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
        first: names or patterns of the layers that read the images (default: the first that runs).
        last: names or patterns of the classifiers (default: the layers whose outputs reach the network's
            outputs with no other layer in between, so several if it has several heads).
        distribution: "uniform" (the same density everywhere) or "erk".
        initialization: "random" positions, or those of largest "magnitude".
        gamma, scaling, affine: see `SparseConv2d`.
        compact_activations: activations and pooling keep a bit or a byte an element for the backward pass, or
            nothing, instead of whole tensors; what they compute stays the same. SiLU, GELU and the like do so
            only with `activation_sparsity`: a byte rounds their gradient.
        consume: let go of each dense weight as soon as its sparse layer is there, for a device that cannot
            hold both networks; an error then leaves the model without weights.
        example: a batch of images (or the arguments of one call). A network that cannot be followed with
            symbols is followed by running it on this; without one, images that its first layer takes are
            tried. Lazy modules need it.
        check: compare the result with the original code on the example, in training and in evaluation, and
            undo everything if they differ (default: if there is an example).
        quiet: print nothing.

    Raises:
        UserError: names what cannot be converted, and what to do about it.
    """
    if initialization not in get_args(Initialization):
        raise UserError(f"initialization = '{initialization}': must be 'random' or 'magnitude'")
    given = Example.of(example)
    with unchanged_on_error(model):
        run_once(model, given)
        plan = _Plan.of(model, given, skip=skip, keep_dense=keep_dense, first=first, last=last)
        wanted = example is not None and not consume if check is None else check
        looked_at = plan.example or (Example.guessed(model) if wanted or not (quiet or consume) else None)
        if wanted and looked_at is None:
            raise UserError("check = True: needs example=, a batch of images")
        if consume and not wanted:
            looked_at = None
        parameters, kept_before = _size(model), _kept(model, looked_at)
        original = _copy(model, must=bool(check)) if wanted else None
        cache = {"activation_sparsity": activation_sparsity, "cache_dtype": cache_dtype}
        normalization: dict[str, Any] = {}
        if normalize:
            normalization = {"normalize": True, "gamma": gamma, "scaling": scaling, "affine": affine}
        replacements = plan.layers_of(
            sparsity, distribution, initialization, seed, cache, normalization, consume
        )
        removed = plan.batchnorms_without_need(replacements) if normalize else []
        plan.put_in(replacements, removed, normalize, compact_activations, cache)
        guard_batchnorm(model)
        if original is not None and looked_at is not None:
            check_by_function(original, model, removed, looked_at.arguments)
        kept = _kept(model, looked_at)
        conversion = Conversion(
            parameters=_size(model),
            parameters_before=parameters,
            kept=None if not kept_before or kept is None else sum(kept.values()),
            kept_before=None if not kept_before else sum(kept_before.values()),
            measured_on=looked_at.shape if looked_at else (),
            sparse=tuple(plan.sparse),
            dense=tuple(name for name in plan.convertible if name not in plan.sparse),
            left=plan.left | plan.batchnorms_left(removed, normalize),
            keepers=kept or {},
            checked=original is not None,
        )
        attach(model, conversion)
    if not quiet and not consume:
        print(conversion, file=sys.stderr)
    return model


def dense_by_default(model: nn.Module, example: Tensor | Sequence[Any] | None = None) -> list[str]:
    """The layers that `sparsify` keeps dense: the first convolution, depthwise ones, and the classifiers."""
    return list(_Plan.of(model, Example.of(example)).dense_by_default())


class _Plan:
    """What is to become of each module; nothing is changed before all of it is known."""

    def __init__(
        self,
        model: nn.Module,
        graph: NetworkGraph,
        example: Example | None,
        skipped: "_Names",
        first: Collection[str],
        last: Collection[str],
    ) -> None:
        self.model, self.graph, self.example, self.skipped = model, graph, example, skipped
        self.first = first
        self.last = {name: tuple(_weight(model.get_submodule(name)).shape) for name in last}  # with shapes
        self.modules = {
            name: module
            for name, module in model.named_modules()
            if not (skipped.match(name) or isinstance(module, torch.jit.ScriptModule))
        }
        self.left: dict[str, str] = {}
        for name, module in self.modules.items():
            if not self._is_inside_a_left_one(name) and (reason := self._reason(name, module)):
                self.left[name or type(model).__name__] = reason
        for name, module in model.named_modules():
            if isinstance(module, torch.jit.ScriptModule) and name.rpartition(".")[0] in self.modules:
                self.left[name] = "it is compiled by TorchScript"
        self.left |= dict.fromkeys(graph.calls, "sparsify swaps modules, not calls of functions")
        self.convertible = {
            name: self.modules[name]
            for name in graph.layers
            if name in self.modules and name not in self.left
        }
        self.sparse: list[str] = []
        self.keep_dense: _Names | None = None

    @classmethod
    def of(
        cls,
        model: nn.Module,
        example: Example | None,
        skip: Iterable[str] = (),
        keep_dense: Iterable[str] | None = None,
        first: Iterable[str] | None = None,
        last: Iterable[str] | None = None,
    ) -> "_Plan":
        skipped = _Names(skip, model, "skip", parameters=True)
        for name, module in model.named_modules():
            if isinstance(module, SparseConv2d) and not skipped.match(name):
                raise UserError(f"sparsify cannot convert '{name}': it is sparse already")
        graph, example = follow(model, skipped.match, example)
        if not graph.layers:
            raise UserError(f"sparsify found no convolution or linear layer in {type(model).__name__}")
        ends = [
            fallback if given is None else _layers_named(given, model, graph, argument)
            for given, fallback, argument in (
                (first, graph.layers[:1], "first"),
                (last, graph.classifiers, "last"),
            )
        ]
        plan = cls(model, graph, example, skipped, *ends)
        plan.keep_dense = _Names(
            plan.dense_by_default() if keep_dense is None else keep_dense, model, "keep_dense"
        )
        return plan

    def dense_by_default(self) -> list[str]:
        def stays(name: str, layer: nn.Module) -> bool:
            depthwise = isinstance(layer, nn.Conv2d) and 1 < layer.groups == layer.in_channels
            return depthwise or name in self.first or name in self.last

        return [name for name, layer in self.convertible.items() if stays(name, layer)]

    def layers_of(
        self,
        sparsity: float,
        distribution: Distribution,
        initialization: Initialization,
        seed: int,
        cache: Mapping[str, Any],
        normalization: Mapping[str, Any],
        consume: bool,
    ) -> dict[str, SparseConv2d]:
        """The new layers, by name."""
        assert self.keep_dense is not None
        if normalization:
            for name, layer in list(self.convertible.items()):
                if name not in self.last and _weight(layer)[0].numel() < 2:  # NSConv needs two
                    self.left[name] = "its filters have one weight each and cannot be normalised"
                    del self.convertible[name]
        shapes = {
            name: _weight(layer).shape
            for name, layer in self.convertible.items()
            if not self.keep_dense.match(name)
        }
        counts = layer_counts(shapes, sparsity, distribution, least=2)
        if starved := [name for name, count in counts.items() if count == 0]:
            raise SparsityError(
                f"sparsity = {sparsity}: leaves no weight in '{starved[0]}'; lower it, or add to keep_dense"
            )
        self.sparse = list(counts)
        if blocked := [name for name in self.graph.layers if name in self.left and not counts]:
            name = blocked[0]
            raise ConversionError(
                f"sparsify found no layer that it could make sparse: '{name}' "
                f"({type(self.modules[name]).__name__}): {self.left[name]}"
                + (f"; {len(blocked) - 1} more layers like it" if len(blocked) > 1 else "")
            )
        replacements: dict[str, SparseConv2d] = {}
        for name, layer in self.convertible.items():
            whole = {"activation_sparsity": 0.0} if name in self.first or name in self.last else {}
            kept = {**cache, **whole}
            if name not in counts and (
                name in self.last or not (normalization or kept["activation_sparsity"])
            ):
                continue
            count = counts.get(name, _weight(layer).numel())
            mask = _initial_mask(layer, count, initialization, generator_for(seed, "mask", name))
            options = {**kept, **({} if name in self.last else normalization)}
            replacements[name] = _sparse(layer, mask, options, consume)
            if (call := self.graph.own.get(name)) is not None:
                geometry = replacements[name].geometry
                replacements[name].geometry = dataclasses.replace(geometry, **vars(call))
        return replacements

    def batchnorms_without_need(self, replacements: Mapping[str, nn.Module]) -> list[str]:
        """The BatchNorms that only layers feed that normalise."""
        normalized = replacements.keys() - self.last.keys()
        return [
            name
            for name, feeding in self.graph.feeds.items()
            if name in self.modules
            and feeding
            and feeding <= normalized
            and not _has_hooks(self.modules[name])
        ]

    def put_in(
        self,
        replacements: Mapping[str, SparseConv2d],
        removed: Iterable[str],
        normalize: bool,
        compact_activations: bool,
        cache: Mapping[str, Any],
    ) -> None:
        """Change the model."""
        for name, sparse in replacements.items():
            own = name in self.graph.own
            _replace(self.model, name, with_own_code(self.modules[name], sparse) if own else sparse)
        for name in removed:
            _replace(self.model, name, without_norm(self.modules[name], name in self.graph.copied))
        if normalize:
            self._normalize_features()
            not_in_place(module for name, module in self.modules.items() if name not in self.graph.in_place)
        if compact_activations:
            self._compact_activations(cache["activation_sparsity"], cache["cache_dtype"])

    def batchnorms_left(self, removed: Iterable[str], normalize: bool) -> dict[str, str]:
        """Those that were to go away and could not."""
        if not normalize:
            return {}
        gone = set(removed)
        return {
            name: "what it normalises does not come from convolutions of ours alone"
            for name, module in self.modules.items()
            if isinstance(module, BATCHNORMS) and name not in gone and name not in self.left
        }

    def _reason(self, name: str, module: nn.Module) -> str | None:  # noqa: PLR0911
        """Why a module with parameters stays as it is; None if it need not, or has none."""
        if not any(True for _ in module.parameters(recurse=False)) and not is_parametrized(module):
            return None
        known = next((kind for kind in (*LAYERS, *BATCHNORMS) if isinstance(module, kind)), None)
        if known is None:
            plain = type(module).__module__.startswith("torch.nn")
            return f"{type(module).__name__} is not converted" if plain else "it has parameters of its own"
        if known in BATCHNORMS:
            if name in self.graph.feeds:
                return None
            return "forward() never calls it" if is_plain_norm(module) else _own_forward(module)
        if not is_plain_layer(module) and name not in self.graph.own:
            return _own_forward(module)
        if is_parametrized(module) or "weight" not in module._parameters:
            return _PARAMETRISED
        if name not in self.graph.layers:
            return "forward() never calls it"
        if _has_hooks(module):
            return "it has hooks"
        if name in self.graph.gates and name not in self.last:
            return "it is a gate of squeeze-and-excitation"
        if f"{name}.weight" in self.graph.read:
            return "its weight is read by other code"
        if self._owners()[id(module.weight)] > 1:
            return "it shares its weight with another module"
        if isinstance(module, nn.Conv2d) and name not in self.graph.own:
            return _padding_problem(module)
        return None

    def _is_inside_a_left_one(self, name: str) -> bool:
        """Such as a part of nn.MultiheadAttention, or what computes a parametrised weight."""
        outer = name
        while outer:
            outer = outer.rpartition(".")[0]
            reason = self.left.get(outer, "")
            if reason.endswith("is not converted") or reason == _PARAMETRISED:
                return True
        return False

    def _owners(self) -> dict[int, int]:
        """How many modules each parameter belongs to."""
        owners: dict[int, int] = {}
        for module in self.model.modules():
            for parameter in module.parameters(recurse=False):
                owners[id(parameter)] = owners.get(id(parameter), 0) + 1
        return owners

    def _normalize_features(self) -> None:
        """Let a classifier normalise its input, unless the network does so or has no other layer."""
        modules = dict(self.model.named_modules())
        for name in self.last:
            before = self.graph.before.get(name, frozenset())
            kinds = [type(modules[part]).__name__ if part in modules else part for part in before]
            if len(self.graph.layers) > 1 and name in self.modules and "norm" not in " ".join(kinds).lower():
                normalize_features(modules[name], self.last[name])

    def _compact_activations(self, sparsity: float, dtype: torch.dtype | None) -> None:
        """Modules are swapped; functional calls, if there are any, are answered but in modules left alone."""
        for name, module in self.modules.items():
            in_place = name in self.graph.in_place
            if type(module) in (nn.ReLU, nn.ReLU6) and not _has_hooks(module):
                _replace(self.model, name, (ReLU if type(module) is nn.ReLU else ReLU6)(in_place))
            elif type(module) is nn.LeakyReLU:
                module.__class__ = LeakyReLU
            elif type(module) in SMOOTH and sparsity and not _has_hooks(module):
                not_in_place([module])
                _replace(self.model, name, Smooth(module, in_place))
            elif type(module) is nn.Dropout:
                module.__class__ = Dropout
            elif type(module) is nn.MaxPool2d and not module.return_indices:
                module.__class__ = MaxPool2d
            elif type(module) is nn.AvgPool2d:
                module.__class__ = AvgPool2d
            elif type(module) is nn.AdaptiveAvgPool2d:
                module.__class__ = AdaptiveAvgPool2d
        saving = Saving(sparsity > 0, sparsity if sparsity and self.graph.products else None, dtype)
        if self.graph.functionals or saving.gate_sparsity:
            skipped = [module for name, module in self.model.named_modules() if self.skipped.match(name)]
            save_memory_in_functionals(self.model, skipped, saving)


def _layers_named(given: Iterable[str], model: nn.Module, graph: NetworkGraph, argument: str) -> list[str]:
    names = _Names(given, model, argument)
    found = [name for name in graph.layers if names.match(name)]
    if names.patterns and not found:
        raise UserError(f"{argument}: {list(names.patterns)} names no convolution or linear layer")
    return found


def _own_forward(module: nn.Module) -> str:
    code = type(module).forward.__code__
    place = f"{Path(code.co_filename).name} line {code.co_firstlineno}"
    return f"{type(module).__name__} has a forward() of its own ({place})"


def _padding_problem(layer: nn.Conv2d) -> str | None:
    if layer.padding_mode != "zeros":
        return f"padding_mode='{layer.padding_mode}' is not supported"
    if layer.padding == "same" and symmetric_padding(layer) is None:
        return "padding='same' with an even kernel pads one side more"
    return None


def _has_hooks(module: nn.Module) -> bool:
    return any(
        (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    )


def _kept(model: nn.Module, example: Example | None) -> dict[str, int] | None:
    return None if example is None else kept_bytes(model, example.arguments)


def _size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _copy(model: nn.Module, must: bool) -> nn.Module | None:
    try:
        return copy.deepcopy(model)
    except Exception as error:  # PyTorch refuses some tensors, and classes may have rules of their own
        if must:
            raise ConversionError(f"check: {type(model).__name__} cannot be copied: {error}") from error
        return None


def _initial_mask(
    layer: nn.Module, count: int, initialization: Initialization, generator: np.random.Generator
) -> Bytes:
    weight = _weight(layer)
    if initialization == "magnitude":
        return magnitude_mask(weight.detach().cpu().numpy(), count)
    mask = random_mask(weight.numel(), count, generator)
    return enliven(mask, (len(weight), weight[0].numel()), generator)


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


def remove_batchnorm(
    model: nn.Module, skip: Iterable[str] = (), example: Tensor | Sequence[Any] | None = None
) -> None:
    """Take every BatchNorm2d away, whatever feeds it; what its class does besides stays."""
    skipped = _Names(skip, model, "skip", parameters=True)
    graph, _ = follow(model, skipped.match, Example.of(example))
    modules = {name: module for name, module in model.named_modules() if not skipped.match(name)}
    for name, module in modules.items():
        if isinstance(module, nn.BatchNorm2d) and (is_plain_norm(module) or name in graph.feeds):
            _replace(model, name, without_norm(module, name in graph.copied))
    not_in_place(module for name, module in modules.items() if name not in graph.in_place)


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
    """Names or patterns of modules; each must match something, so that a typing error is noticed.

    A parameter of a block's own may be named too: it stays as it is anyway, and the block's layers do not.
    """

    def __init__(
        self, patterns: Iterable[str], model: nn.Module, argument: str, parameters: bool = False
    ) -> None:
        self.patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
        names = [name for name, _ in model.named_modules()]
        if parameters:
            names += [name for name, _ in model.named_parameters()]
        for pattern in self.patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise UserError(f"{argument}: no module of {type(model).__name__} matches '{pattern}'")

    def match(self, name: str) -> bool:
        """Whether a pattern names this module or one that contains it."""
        parts = name.split(".")
        prefixes = [".".join(parts[: end + 1]) for end in range(len(parts))]
        return any(fnmatchcase(prefix, pattern) for prefix in prefixes for pattern in self.patterns)
