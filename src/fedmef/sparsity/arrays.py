"""Names for the kinds of NumPy arrays that everything here works on."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Bits: TypeAlias = NDArray[np.bool_]
Bytes: TypeAlias = NDArray[np.uint8]
Integers: TypeAlias = NDArray[np.int64]
Places: TypeAlias = NDArray[np.signedinteger[Any]]  # in a layer: int32 where a device keeps many, or int64
Floats: TypeAlias = NDArray[np.floating[Any]]
