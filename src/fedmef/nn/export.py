"""From a PyTorch network to the same network as data, by tracing.

What cannot be described is `Opaque`: such a network trains on the torch backend with its own code. A network
that is described completely is also checked by function: its data, executed, must give what its code gives.
"""

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call

from fedmef.errors import NetworkError, UserError
from fedmef.nn.describe import array_spec, float_name
from fedmef.nn.layers import sparse_layers
from fedmef.nn.module import NetworkModule, load_state
from fedmef.nn.trace import Trace, Tracer, UntraceableError
from fedmef.sparsity.model import State
from fedmef.sparsity.network import INPUT, Input, Network
from fedmef.sparsity.operations import Opaque, Operation

SAME = 1e-4  # relative difference between two ways to compute the same


def export_network(model: nn.Module, images: Input) -> Network:
    """What a network computes for these images; the model stays as it is.

    Raises `UserError` when it cannot take such images, or answers anything else than logits.
    """
    training = {module: module.training for module in model.modules()}
    try:
        return _export(model.eval(), images)
    finally:
        for module, was in training.items():
            module.training = was


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
        if _differs_in_training(model, trace.graph):
            reason = "forward() does something else in training"
        else:
            reason = _difference(model, network, batch) if network.opaque is None else ""
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


def _differs_in_training(model: nn.Module, graph: fx.Graph) -> bool:
    """Whether forward() asks if it is training, as stochastic depth does; it was traced while it is not.

    Or train() is its own, and leaves some modules as they are, such as BatchNorms whose statistics stay.
    """
    try:
        model.train()
        left_out = not all(module.training for module in model.modules())
        return left_out or str(Tracer().trace(model)) != str(graph)
    except Exception:  # user code runs here, so it may raise anything
        return True
    finally:
        model.eval()


def _difference(model: nn.Module, network: Network, batch: Tensor) -> str:
    """Why a network as data is not what its code computes, or "".

    In double precision: a deep network may blow up a rounding beyond any tolerance.
    """
    executed, batch = NetworkModule(network), batch.double()
    load_state(executed, network, module_state(model, network))
    exact = {
        name: tensor.double() for name, tensor in model.state_dict().items() if tensor.is_floating_point()
    }
    logits = functional_call(model, exact, batch)
    difference = (executed.double().eval()(batch) - logits).abs().max()
    if difference <= SAME * logits.abs().max().clamp(min=1e-3):
        return ""
    return f"as data it computes something else than its code: logits differ by {float(difference):.2g}"
