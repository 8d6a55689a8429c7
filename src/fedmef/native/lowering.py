"""From a network and the size of a batch to a plan."""

from collections.abc import Iterable

from fedmef.native.arena import lifetimes, place
from fedmef.native.backward import BackwardPass
from fedmef.native.forward import ForwardPass, Mode
from fedmef.native.fusion import fuse
from fedmef.native.needs import Needs
from fedmef.native.plan import Layout, Plan
from fedmef.native.writer import Writer
from fedmef.sparsity.network import Network
from fedmef.sparsity.operations import ReLU, Shape


def lower(
    network: Network, layout: Layout, mode: Mode, growing: Iterable[str] = (), *, inspect: bool = False
) -> Plan:
    """What a program does with one batch.

    Args:
        growing: in mode "growth", the layers of which gradients at pruned positions are wanted.
        inspect: let all bits outlive the backward pass, for tests that look at them.
    """
    writer = Writer(layout)
    forward = ForwardPass(Needs(network, _trained(network, mode, growing)), writer, mode)
    forward.write()
    if mode == "predict":
        logits = forward.buffers[forward.needs.logits]
        writer.emit("logits", {"logits": logits}, classes=network.classes)
    else:
        BackwardPass(forward, mode).write()
    instructions = fuse(writer.instructions)
    lives = lifetimes(instructions, len(writer.sizes))
    bits = _bits(forward)
    if inspect:
        for buffer, _ in bits.values():
            lives[buffer] = (lives[buffer][0], len(instructions))
    offsets = place(writer.sizes, lives)
    return Plan(layout, tuple(instructions), tuple(writer.sizes), tuple(offsets), bits)


def _trained(network: Network, mode: Mode, growing: Iterable[str]) -> set[str]:
    """The arrays that get a gradient."""
    weights = {name for name, spec in network.arrays.items() if spec.role == "weight"}
    trained = weights - set(network.frozen)
    if mode == "predict":
        return set()
    if mode == "train":
        return trained
    return {f"{layer}.values" for layer in growing if {f"{layer}.values", f"{layer}.gain"} & trained}


def _bits(forward: ForwardPass) -> dict[str, tuple[int, Shape]]:
    bits = {}
    for operation in forward.needs.network.operations:
        if operation.name in forward.caches:
            bits[operation.name] = forward.caches[operation.name], forward.shapes[operation.inputs[0]]
        elif isinstance(operation, ReLU) and operation.name in forward.saved:
            bits[operation.name] = forward.saved[operation.name], forward.shapes[operation.name]
    return bits
