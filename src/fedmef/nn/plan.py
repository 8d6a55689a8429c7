"""What is to become of each module of a network; nothing is changed before all of it is known."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from fedmef.errors import ConversionError, SparsityError, UserError
from fedmef.experiment.randomness import generator_for
from fedmef.nn.dropout import Dropout
from fedmef.nn.example import Example, follow
from fedmef.nn.facts import NetworkGraph
from fedmef.nn.features import normalize_features
from fedmef.nn.functionals import Saving, save_memory_in_functionals
from fedmef.nn.kinds import BATCHNORMS, LAYERS, is_plain_layer, is_plain_norm
from fedmef.nn.layers import SparseConv2d, SparseLinear, symmetric_padding
from fedmef.nn.names import Names
from fedmef.nn.own_layer import with_own_code
from fedmef.nn.pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from fedmef.nn.relu import LeakyReLU, ReLU, ReLU6
from fedmef.nn.smooth import SMOOTH, Smooth
from fedmef.nn.without_norm import without_norm
from fedmef.sparsity import Distribution, layer_counts, magnitude_mask, random_mask
from fedmef.sparsity.arrays import Bytes
from fedmef.sparsity.masks import enliven

Initialization = Literal["random", "magnitude"]

_PARAMETRISED = "its weight is parametrised"


class Plan:
    """What is to become of each module; nothing is changed before all of it is known."""

    def __init__(
        self,
        model: nn.Module,
        graph: NetworkGraph,
        example: Example | None,
        skipped: "Names",
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
        self.keep_dense: Names | None = None

    @classmethod
    def of(
        cls,
        model: nn.Module,
        example: Example | None,
        skip: Iterable[str] = (),
        keep_dense: Iterable[str] | None = None,
        first: Iterable[str] | None = None,
        last: Iterable[str] | None = None,
    ) -> "Plan":
        skipped = Names(skip, model, "skip", parameters=True)
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
        plan.keep_dense = Names(
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
            replace_module(self.model, name, with_own_code(self.modules[name], sparse) if own else sparse)
        for name in removed:
            replace_module(self.model, name, without_norm(self.modules[name], name in self.graph.copied))
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
                replace_module(self.model, name, (ReLU if type(module) is nn.ReLU else ReLU6)(in_place))
            elif type(module) is nn.LeakyReLU:
                module.__class__ = LeakyReLU
            elif type(module) in SMOOTH and sparsity and not _has_hooks(module):
                not_in_place([module])
                replace_module(self.model, name, Smooth(module, in_place))
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
    names = Names(given, model, argument)
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


def not_in_place(modules: Iterable[nn.Module]) -> None:
    """Where a BatchNorm went away, its input may be needed again."""
    for module in modules:
        if isinstance(getattr(module, "inplace", None), bool):
            module.inplace = False  # type: ignore[assignment]


def replace_module(model: nn.Module, name: str, module: nn.Module) -> None:
    """Put another module where this one is."""
    old = model.get_submodule(name)
    module.train(old.training)
    # One module may have several names, such as a ReLU that is written once and used in many places.
    for alias in [alias for alias, other in model.named_modules(remove_duplicate=False) if other is old]:
        parent, _, child = alias.rpartition(".")
        setattr(model.get_submodule(parent), child, module)


def _weight(layer: nn.Module) -> torch.Tensor:
    assert isinstance(layer.weight, torch.Tensor)
    return layer.weight
