"""Floating-point tensors in the type that they have on the wire."""

import torch
from torch import Tensor

from fedmef.wire.errors import MessageError, ValueRangeError

WIRE_DTYPES = {"fp32": None, "fp16": torch.float16, "bf16": torch.bfloat16}


def to_wire(name: str, tensor: Tensor, wire_dtype: str) -> Tensor:
    """The tensor as it travels: `fp32` leaves it as it is; a value that `fp16` cannot hold is an error."""
    content = tensor.detach().cpu()
    dtype = WIRE_DTYPES[wire_dtype]
    if dtype is None or not content.is_floating_point():
        return content
    rounded = content.to(dtype)
    if not rounded.isfinite().all() and (lost := content.isfinite() & ~rounded.isfinite()).any():
        raise ValueRangeError(
            f"{name} has the value {float(content[lost][0]):g}, and {wire_dtype} ends at "
            f"{torch.finfo(dtype).max:g}: set wire_dtype to bf16 or fp32 (or lower learning_rate, if "
            "training diverges)"
        )
    return rounded


def from_wire(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The inverse: the tensor in the receiver's own type; any type that a sender may have chosen will do."""
    if tensor.dtype != dtype and not (dtype.is_floating_point and tensor.dtype in WIRE_DTYPES.values()):
        raise MessageError(f"{name} is of type {tensor.dtype} instead of {dtype}")
    return tensor.to(dtype)
