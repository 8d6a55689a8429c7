"""Floating-point arrays in their type on the wire. bfloat16, which NumPy lacks, is raw 16 bits."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedmef.errors import MessageError, ValueRangeError
from fedmef.sparsity.arrays import Array

WireType = Literal["fp32", "fp16", "bf16"]

_LARGEST = {"fp16": float(np.finfo(np.float16).max), "bf16": 3.3895314e38}


def to_wire(name: str, array: Array, wire_dtype: WireType) -> Array:
    """The array as it travels: `fp32` leaves it as it is; a value that the type cannot hold is an error."""
    if wire_dtype == "fp32" or array.dtype.kind != "f":
        return array
    with np.errstate(over="ignore"):
        rounded = to_bfloat16(array) if wire_dtype == "bf16" else array.astype(np.float16)
    finite = np.isfinite(from_bfloat16(rounded) if wire_dtype == "bf16" else rounded)
    if not finite.all() and (lost := np.isfinite(array) & ~finite).any():
        raise ValueRangeError(
            f"{name} has the value {float(array[lost][0]):g}, and {wire_dtype} ends at "
            f"{_LARGEST[wire_dtype]:g}: set wire_dtype to bf16 or fp32 (or lower learning_rate, if "
            "training diverges)"
        )
    return rounded


def from_wire(name: str, array: Array, dtype: str) -> Array:
    """The inverse: the array in the receiver's own type; any type that a sender may have chosen will do."""
    wanted = np.dtype(dtype)
    if array.dtype == wanted:
        return array
    if wanted.kind != "f" or array.dtype not in (np.float16, np.uint16):
        raise MessageError(f"{name} is of type {array.dtype} instead of {wanted}")
    return (from_bfloat16(array) if array.dtype == np.uint16 else array).astype(wanted)


def to_bfloat16(array: Array) -> NDArray[np.uint16]:
    """The upper halves of float32 numbers, rounded to the nearest, ties to even; NaN stays NaN."""
    bits = np.atleast_1d(array.astype(np.float32)).view(np.uint32)
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    rounded[np.isnan(bits.view(np.float32))] = 0x7FC0
    return rounded.reshape(array.shape)


def from_bfloat16(array: NDArray[Any]) -> NDArray[np.float32]:
    """The same numbers in float32: exact."""
    return (np.atleast_1d(array).astype(np.uint32) << 16).view(np.float32).reshape(array.shape)
