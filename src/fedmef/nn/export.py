"""From a PyTorch network to the same network as data, by tracing.

What cannot be described is `Opaque`: such a network trains on the torch backend with its own code. A network
that is described completely is also checked by function: its data, executed, must give what its code gives.
"""

import sys

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedmef.errors import NetworkError, UserError
from fedmef.nn.describe import array_spec, float_name
from fedmef.nn.layers import sparse_layers
from fedmef.nn.module import NetworkModule, load_state
from fedmef.nn.record import Recording
from fedmef.nn.trace import Trace, UntraceableError, asking_for_training, follow, modes_kept
from fedmef.nn.unchanged import only_looking
from fedmef.sparsity.model import State
from fedmef.sparsity.network import INPUT, Input, Network
from fedmef.sparsity.operations import Opaque, Operation

SAME = 1e-4  # relative difference between two ways to compute the same
FEW, MANY, LARGEST_BATCH = 20, 300, 2**20  # images, and numbers of a batch of many
SAME_GRADIENT = 1e-2  # a tie between two activations may be pruned in either way


def export_network(model: nn.Module, images: Input) -> Network:
    """What a network computes for these images; the model stays as it is.

    Raises `UserError` when it cannot take such images, or answers anything else than logits.
    """
    with modes_kept(model):
        return _export(model.eval(), images)


def module_state(model: nn.Module, network: Network) -> State:
    """A model's arrays, by the names that its network has for them."""
    tensors = model.state_dict()
    return {name: tensors[name].detach().cpu().numpy().copy() for name in network.arrays}


@torch.no_grad()
def _export(model: nn.Module, images: Input) -> Network:
    for name, parameter in model.named_parameters():
        float_name(parameter, name)  # its error says more than PyTorch's would
    kind = next((parameter.dtype for parameter in model.parameters()), torch.float32)
    batch = torch.rand(2, *images.shape, generator=torch.Generator().manual_seed(0)).sub_(0.5).to(kind)
    with torch.random.fork_rng(devices=[]):
        try:
            logits = model(batch)
        except Exception as error:  # a user's own network may raise anything
            raise UserError(
                f"the network cannot take images of shape {list(images.shape)}: {error}"
            ) from error
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(batch):
        shape = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise UserError(f"the network answers {shape} to 2 images: it must answer a row of numbers for each")
    classes = logits.shape[1]
    frozen = tuple(name for name, parameter in model.named_parameters() if not parameter.requires_grad)

    def network_of(operations: tuple[Operation, ...]) -> Network:
        arrays = {name for operation in operations for name in operation.arrays()}
        return Network(images, operations, tuple(name for name in frozen if name in arrays))

    try:
        trace = Trace(model, batch)
        network = network_of(trace.operations())
        reason = _beyond_data(model, batch)
        if trace.recording is not None:
            reason = reason or _beyond_example(model, trace.recording, network.operations, batch)
        if not (reason or network.opaque):
            reason = _difference(model, network, batch)
        if reason:
            network = network_of((*network.operations, _own_code(model, reason, classes, network.operations)))
    except (NetworkError, UntraceableError) as error:
        network = network_of((_own_code(model, str(error), classes),))
    if hidden := sparse_layers(model).keys() - network.sparse_layers.keys():
        assert network.opaque is not None
        raise UserError(
            f"the sparse layer '{min(hidden)}' cannot be described as data ({network.opaque.description}): "
            "no method could adjust it"
        )
    return network


def _own_code(model: nn.Module, reason: str, classes: int, before: tuple[Operation, ...] = ()) -> Opaque:
    """Says that only its own code can train this network, and has the arrays that no operation before has."""
    known = {name for operation in before for name in operation.arrays()}
    tensors = {name: tensor for name, tensor in model.state_dict().items() if name not in known}
    return Opaque(
        name="own_code",
        inputs=(before[-1].name if before else INPUT,),
        description=f"{type(model).__name__}: {reason}"[:200],
        shape=(classes,),
        own={name: array_spec(name, tensor, model) for name, tensor in tensors.items()},
    )


def _beyond_data(model: nn.Module, batch: Tensor) -> str:
    """What a network does that a list of operations cannot say, or ""."""
    if _layers_share(model):
        return "layers share weights"
    asked: list[str] = []
    try:
        with only_looking(model):
            model.train()
            if not all(module.training for module in model.modules()):
                return "train() leaves some modules as they are"
            with asking_for_training(model, asked, sys._getframe()):
                _, recording = follow(model, batch)
    except UntraceableError as error:
        return f"forward() cannot be followed in training {error}"
    if asked:
        return f"forward() does something else in training: {asked[0]}"
    return _decided_by_values(recording)


def _beyond_example(
    model: nn.Module, recording: Recording, operations: tuple[Operation, ...], batch: Tensor
) -> str:
    """Why other images may take another path through forward() than the example did, or ""."""
    if reason := _decided_by_values(recording):
        return reason
    for size in (1, 3, _many(batch)):
        images = batch[:1].expand(size, *batch.shape[1:])
        try:
            same = Trace(model, images).operations() == operations
        except (NetworkError, UntraceableError):
            same = False
        if not same:
            return f"forward() does something else for a batch of {len(images)} than for one of {len(batch)}"
    return ""


def _many(batch: Tensor) -> int:
    """More images than a batch has, in training or evaluation; fewer where they are large."""
    return max(FEW, min(MANY, LARGEST_BATCH // batch[0].numel()))


def _decided_by_values(recording: Recording | None) -> str:
    if recording is None or not recording.values:
        return ""
    return f"forward() decides by values of tensors: {recording.values[0]}"


def _layers_share(model: nn.Module) -> bool:
    """Whether two modules have one parameter; one module under two names is no matter."""
    owners: dict[int, int] = {}
    return any(
        owners.setdefault(id(parameter), id(module)) != id(module)
        for module in model.modules()
        for parameter in module.parameters(recurse=False)
    )


def _difference(model: nn.Module, network: Network, batch: Tensor) -> str:
    """Why a network as data is not what its code computes and trains, or "".

    In double precision: a deep network may blow up a rounding beyond any tolerance.
    """
    executed, batch = NetworkModule(network), batch.double()
    load_state(executed, network, module_state(model, network))
    exact = {
        name: tensor.double() for name, tensor in model.state_dict().items() if tensor.is_floating_point()
    }
    trained = {
        name: exact[name].requires_grad_()
        for name, parameter in executed.named_parameters()
        if parameter.requires_grad
    }
    with torch.enable_grad():
        logits = functional_call(model, exact, batch)
        results = executed.double().eval()(batch)
    difference = float((results - logits).detach().abs().max())
    if not difference <= SAME * float(logits.detach().abs().max().clamp(min=1e-3)):
        return f"as data it computes something else than its code: logits differ by {difference:.2g}"
    parameters = dict(executed.named_parameters())
    ours = _gradients(results, [parameters[name] for name in trained])
    theirs = _gradients(logits, list(trained.values()))
    for name, mine, own in zip(trained, ours, theirs, strict=True):
        if (mine - own).norm() > SAME_GRADIENT * max(float(own.norm()), 1e-12):
            return f"as data it would be trained in another way than its code: {name}"
    return ""


@torch.enable_grad()
def _gradients(logits: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    """Of a number that all logits take part in; 0 for a parameter that has none."""
    if not logits.requires_grad:
        return [torch.zeros_like(parameter) for parameter in parameters]
    found = torch.autograd.grad(logits.square().sum(), parameters, allow_unused=True)
    return [
        torch.zeros_like(parameter) if gradient is None else gradient
        for gradient, parameter in zip(found, parameters, strict=True)
    ]
