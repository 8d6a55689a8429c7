"""Reading pickles of byte arrays without running what they say: only arrays and plain containers come out."""

import pickle
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedmef.errors import UserError


class _PickledType:
    """Stands for numpy.dtype: keeps the name alone, and only lets bytes pass."""

    def __init__(self, name: str | bytes, *_: object) -> None:
        if name not in ("u1", b"u1"):
            raise ValueError(f"array of type {name!r}, not of bytes")

    def __setstate__(self, state: object) -> None:
        pass


class _PickledArray:
    """Stands for numpy.ndarray: numpy never sees a state that was not checked here."""

    def __init__(self, *_: object) -> None:
        self.values: npt.NDArray[np.uint8] = np.empty(0, dtype=np.uint8)

    def __setstate__(self, state: tuple[int, tuple[int, ...], _PickledType, bool, bytes]) -> None:
        _, shape, _, column_major, data = state
        self.values = np.frombuffer(data, dtype=np.uint8).reshape(shape, order="F" if column_major else "C")


class _Unpickler(pickle.Unpickler):
    ADMITTED = {  # noqa: RUF012
        ("numpy.core.multiarray", "_reconstruct"): _PickledArray,
        ("numpy._core.multiarray", "_reconstruct"): _PickledArray,
        ("numpy", "ndarray"): _PickledArray,
        ("numpy", "dtype"): _PickledType,
    }

    def find_class(self, module_name: str, global_name: str, /) -> type[_PickledArray | _PickledType]:
        try:
            return self.ADMITTED[module_name, global_name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}") from None


def read_pickled_arrays(file: Path, remedy: str) -> dict[bytes, object]:
    """A pickled dictionary, Python 2's or 3's. Its byte arrays come as numpy's, its strings as bytes."""
    try:
        with file.open("rb") as opened:
            content = _Unpickler(opened, encoding="bytes").load()
        if not isinstance(content, dict):
            raise ValueError(f"it holds a {type(content).__name__}, not a dictionary")
    # A damaged pickle can raise nearly anything.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{file} is damaged or not a data file ({reason}): {remedy}") from error
    return {
        key.encode() if isinstance(key, str) else key: value.values
        if isinstance(value, _PickledArray)
        else value
        for key, value in content.items()
    }
