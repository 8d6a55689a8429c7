"""The compiled extension, csrc/binding.cpp. What does not fit raises ValueError."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmef.sparsity.arrays import Bytes, Integers, Places

Singles = NDArray[np.float32]

def available() -> list[str]: ...

class Runtime:
    instructions: str
    lanes: int
    threads: int
    def __init__(
        self,
        instructions: str,
        threads: int,
        shape: tuple[int, int, int],
        scale: Singles,
        shift: Singles,
    ) -> None: ...
    def add_layer(
        self,
        name: str,
        input: tuple[int, int, int],  # noqa: A002
        output: tuple[int, int, int],
        window: tuple[int, ...],
        groups: int,
        sparse: bool,
        linear: bool,
        bias: bool,
        gain: bool,
        normalization: tuple[float, float, bool, int] | None,
        train_values: bool,
        train_gain: bool,
        train_bias: bool,
    ) -> None: ...
    def add_batch_norm(
        self,
        name: str,
        channels: int,
        epsilon: float,
        momentum: float,
        affine: bool,
        train_gain: bool,
        train_bias: bool,
    ) -> None: ...
    def load_layer(
        self,
        name: str,
        values: Singles,
        mask: Bytes | None,
        gain: Singles | None,
        bias: Singles | None,
    ) -> None: ...
    def load_batch_norm(
        self,
        name: str,
        mean: Singles,
        variance: Singles,
        batches: int,
        gain: Singles | None,
        bias: Singles | None,
    ) -> None: ...
    def layer_arrays(self, name: str, gradients: bool = False) -> dict[str, Singles]: ...
    def batch_norm_arrays(self, name: str, gradients: bool = False) -> dict[str, Singles]: ...
    def mask(self, name: str) -> Bytes: ...
    def batches(self, name: str) -> int: ...
    def mark(self, name: str, places: Integers) -> None: ...
    def marked_squares(self, name: str) -> float: ...
    def grow(self, name: str, count: int) -> None: ...
    def scores(self, name: str) -> tuple[Places, Singles]: ...
    def shrink(self) -> None: ...
    def memory(self) -> dict[str, int]: ...

class Program:
    """Its instructions are methods with the names and arguments of `fedmef.native.plan.Instruction`."""

    def __init__(self, runtime: Runtime, images: int, lanes: int, arena: int) -> None: ...
    def buffer(self, offset: int, bytes: int) -> int: ...  # noqa: A002
    def run(
        self,
        images: Bytes,
        labels: Integers | None,
        rate: float = 0.0,
        pull: float = 0.0,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        record: bool = False,
    ) -> float: ...
    timed: bool
    def seconds(self) -> NDArray[np.float64]: ...
    def last_logits(self) -> Singles: ...
    def content(self, buffer: int) -> Bytes: ...
    def __getattr__(self, name: str) -> Any: ...
