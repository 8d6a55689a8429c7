"""The graph of a network, noted while it runs."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmef.nn.record import record
from tests.nn.styles import MemoryEfficientSwish


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.swish, self.fc = nn.Conv2d(3, 8, 3), MemoryEfficientSwish(), nn.Linear(8, 4)
        self.scale = nn.Parameter(torch.ones(8, 1, 1))

    def forward(self, x: Any) -> Any:
        assert x.shape[1] == 3
        x = self.swish(F.relu(self.conv(x)))
        x *= 0.5
        left, right = x.chunk(2, 1)
        x = torch.cat([left, nn.ReLU()(right)], 1) * self.scale
        x[:, 0] = 0
        if x.sum() > 0:
            x = x + 1
        return {"logits": self.fc(x.mean((2, 3)))}


def is_layer(module: nn.Module, name: str) -> bool:
    return isinstance(module, nn.Conv2d | nn.Linear)


def test_every_call_is_noted_in_order() -> None:
    stack: list[str] = []
    recording = record(Odd(), [torch.ones(2, 3, 8, 8)], is_layer, stack)
    calls = [str(getattr(node.target, "__name__", node.target)) for node in recording.graph.nodes]
    assert [name for name in calls if name not in ("gt", "sum")] == [
        "input_0", "conv", "relu", "_Swish", "mul_", "chunk", "getitem", "getitem", "relu", "cat", "scale",
        "mul", "setitem", "add", "mean", "fc", "output",
    ]  # fmt: skip
    assert recording.branches == [""]
    assert not stack
    assert recording.shapes["conv"] == (2, 8, 6, 6)


def test_pytorch_is_as_it_was_afterwards_even_after_an_error() -> None:
    call, apply = nn.Module.__call__, vars(torch.autograd.Function)["apply"]
    stack: list[str] = []
    record(Odd(), [torch.ones(2, 3, 8, 8)], is_layer, [])
    with pytest.raises(RuntimeError):
        record(Odd(), [torch.ones(2, 3, 2, 2)], is_layer, stack)
    assert stack == ["", "conv"]
    assert nn.Module.__call__ is call
    assert vars(torch.autograd.Function)["apply"] is apply


def test_the_example_is_not_written_to() -> None:
    class Writes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.clone().mul_(2)

    images = torch.ones(2)
    record(Writes(), [images], is_layer, [])
    assert images.tolist() == [1, 1]
