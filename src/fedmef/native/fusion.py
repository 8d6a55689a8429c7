"""ReLUs that are done where a layer stores its result: one pass over memory less, forward and backward."""

from collections.abc import Sequence

from fedmef.native.plan import Instruction


def fuse(instructions: Sequence[Instruction]) -> list[Instruction]:
    """The same program: a ReLU, or its backward step, joins the layer that wrote its buffer right before."""
    fused: list[Instruction] = []
    for instruction in instructions:
        writer = _last_use_of_memory(fused)
        if writer is not None and (joined := _joined(fused[writer], instruction)):
            fused[writer] = joined
        else:
            fused.append(instruction)
    return fused


def _last_use_of_memory(instructions: Sequence[Instruction]) -> int | None:
    """The number of the last instruction that has buffers: an update changes only weights."""
    return next(
        (number for number in reversed(range(len(instructions))) if instructions[number].buffers), None
    )


def _joined(writer: Instruction, relu: Instruction) -> Instruction | None:
    if (writer.kind, relu.kind) == ("convolve", "relu") and writer.buffers["y"] == relu.buffers["x"]:
        bits = {name: buffer for name, buffer in relu.buffers.items() if name == "bits"}
        how = {name: relu.options[name] for name in ("upper", "at_zero")}
        return Instruction("convolve_relu", writer.buffers | bits, writer.options | how)
    if (writer.kind, relu.kind) == ("input_gradient", "relu_backward") and (
        writer.buffers["dx"] == relu.buffers["gradient"]
    ):
        bits = {"bits": relu.buffers["bits"]}
        return Instruction("input_gradient_relu", writer.buffers | bits, writer.options)
    return None
