"""Ordinary models in, sparse models out: swaps the layers of any convolutional network."""

import copy
import sys
from collections.abc import Iterable, Sequence
from typing import Any, get_args

import torch
from torch import Tensor, nn

from fedmef.errors import ConversionError, UserError
from fedmef.nn.batchnorm import guard_batchnorm
from fedmef.nn.check import check_by_function
from fedmef.nn.conversion import Conversion, Keeper, attach, find_keepers
from fedmef.nn.example import Example, follow, has_lazy_modules, run_once
from fedmef.nn.kinds import is_plain_norm
from fedmef.nn.names import Names
from fedmef.nn.normalization import Scaling
from fedmef.nn.plan import Initialization, Plan, not_in_place, replace_module
from fedmef.nn.unchanged import unchanged_on_error
from fedmef.nn.without_norm import without_norm
from fedmef.sparsity import Distribution


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
    _check_model(model)
    given = Example.of(example)
    with unchanged_on_error(model):
        if not consume or has_lazy_modules(model):
            run_once(model, given)
        plan = Plan.of(model, given, skip=skip, keep_dense=keep_dense, first=first, last=last)
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
            kept=None if not kept_before or kept is None else sum(keeper.size for keeper in kept),
            kept_before=None if not kept_before else sum(keeper.size for keeper in kept_before),
            measured_on=looked_at.shape if looked_at else (),
            sparse=tuple(plan.sparse),
            dense=tuple(name for name in plan.convertible if name not in plan.sparse),
            left=plan.left | plan.batchnorms_left(removed, normalize),
            keepers=kept or (),
            checked=original is not None,
        )
        attach(model, conversion)
    if not quiet and not consume:
        print(conversion, file=sys.stderr)
    return model


def _check_model(model: object) -> None:
    if isinstance(model, type):
        raise UserError(f"model = {model.__name__}: a class; call it for a network: {model.__name__}(...)")
    if not isinstance(model, nn.Module):
        raise UserError(f"model = a {type(model).__name__}: give a torch.nn.Module")


def dense_by_default(model: nn.Module, example: Tensor | Sequence[Any] | None = None) -> list[str]:
    """The layers that `sparsify` keeps dense: the first convolution, depthwise ones, and the classifiers."""
    return list(Plan.of(model, Example.of(example)).dense_by_default())


def _kept(model: nn.Module, example: Example | None) -> tuple[Keeper, ...] | None:
    return None if example is None else find_keepers(model, example.arguments)


def _size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _copy(model: nn.Module, must: bool) -> nn.Module | None:
    try:
        return copy.deepcopy(model)
    except Exception as error:  # PyTorch refuses some tensors, and classes may have rules of their own
        if must:
            raise ConversionError(f"check: {type(model).__name__} cannot be copied: {error}") from error
        return None


def remove_batchnorm(
    model: nn.Module, skip: Iterable[str] = (), example: Tensor | Sequence[Any] | None = None
) -> None:
    """Take every BatchNorm2d away, whatever feeds it; what its class does besides stays."""
    skipped = Names(skip, model, "skip", parameters=True)
    graph, _ = follow(model, skipped.match, Example.of(example))
    modules = {name: module for name, module in model.named_modules() if not skipped.match(name)}
    for name, module in modules.items():
        if isinstance(module, nn.BatchNorm2d) and (is_plain_norm(module) or name in graph.feeds):
            replace_module(model, name, without_norm(module, name in graph.copied))
    not_in_place(module for name, module in modules.items() if name not in graph.in_place)
