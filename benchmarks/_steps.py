"""A whole training step, by the native backend and by PyTorch: contestants for `step.py`, and their parts."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks._interleaved import Contestant, clocked, faster
from fedmef.device.native_backend import NativeBackend
from fedmef.experiment.settings import Experiment
from fedmef.models import build_model
from fedmef.models.initial import initial_model
from fedmef.sparsity.arrays import Bytes, Integers

SHAPE, CLASSES = (3, 32, 32), 10
RATE = 0.01
REST = "the rest"


@dataclass(frozen=True)
class Case:
    """What is trained and how; `name` is what `--only` looks at."""

    name: str
    width: int
    network: str = "resnet18"
    batch: int = 64
    threads: int = 1
    method: str = "fedmef"


CASES = (
    Case("width64", 64),
    Case("width16", 16),
    Case("width64-batch1", 64, batch=1),
    Case("width16-batch1", 16, batch=1),
    Case("width64-threads2", 64, threads=2),
    Case("width16-threads2", 16, threads=2),
    Case("mobilenet_v2", 32, network="mobilenet_v2"),
    Case("batchnorm-width64", 64, method="fedtiny"),
    Case("batchnorm-width16", 16, method="fedtiny"),
)

# Parts of a step: our instructions, and what names of PyTorch's operations contain (the first that fits).
NATIVE_PARTS = {
    "convolve": "convolutions: forward",
    "convolve_relu": "convolutions: forward, with ReLU",
    "transpose": "convolutions: input gradient",
    "input_gradient": "convolutions: input gradient",
    "input_gradient_relu": "convolutions: input gradient, with ReLU",
    "weight_gradient": "convolutions: weight gradient",
    "prune": "pruning of activations",
    "relu": "ReLU",
    "relu_backward": "ReLU",
    "batch_norm": "BatchNorm",
    "batch_norm_fixed": "BatchNorm",
    "batch_norm_backward": "BatchNorm",
    "add": "sums of blocks",
    "update": "SGD",
}
TORCH_PARTS = {
    "convolution_backward": "convolutions: both gradients",
    "conv": "convolutions: forward",
    "batch_norm": "BatchNorm",
    "threshold": "ReLU",
    "clamp": "ReLU",
    "relu": "ReLU",
    "add_": "SGD",
    "add": "sums of blocks",
}


@dataclass(frozen=True)
class Ours:
    """A network as a method trains it, with a batch: a step goes from pixels to new weights."""

    backend: NativeBackend
    images: Bytes
    labels: Integers

    @classmethod
    def of(cls, case: Case, sparsity: float) -> "Ours":
        experiment = Experiment(
            method=case.method,
            model=case.network,
            width=case.width,
            sparsity=sparsity,
            activation_sparsity=sparsity,
            distribution="uniform",
        )
        model = initial_model(experiment, SHAPE, CLASSES, ((0.5,) * 3, (0.25,) * 3))
        backend = NativeBackend(model.network, threads=case.threads)
        backend.load(model.state)
        generator = np.random.default_rng(0)
        images = generator.integers(0, 256, (case.batch, *SHAPE), dtype=np.uint8)
        return cls(backend, images, generator.integers(0, CLASSES, case.batch))

    def step(self) -> None:
        self.backend.step(self.images, self.labels, RATE)

    def parts(self, steps: int) -> dict[str, float]:
        """Seconds of each part of that many steps."""
        self.step()
        seconds: dict[str, float] = defaultdict(float)
        for _ in range(steps):
            for instruction, time in self.backend.timed_step(self.images, self.labels, RATE):
                seconds[NATIVE_PARTS.get(instruction.kind, REST)] += time
        return seconds


def dense_step(case: Case) -> Contestant:
    """PyTorch's, of the dense network with BatchNorm, in its faster layout."""
    torch.set_num_threads(case.threads)
    layouts = {
        "contiguous": _training(case, torch.contiguous_format),
        "channels last": _training(case, torch.channels_last),
    }
    return faster({name: clocked(step, case.threads) for name, step in layouts.items()}, case.threads)


def dense_parts(case: Case, steps: int) -> dict[str, float]:
    """The same in its usual layout, channels last: seconds of each part of that many steps."""
    torch.set_num_threads(case.threads)
    step = _training(case, torch.channels_last)
    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(steps):
            step()
    seconds: dict[str, float] = defaultdict(float)
    for event in profile.key_averages():
        fitting = (part for operation, part in TORCH_PARTS.items() if operation in event.key)
        seconds[next(fitting, REST)] += event.self_cpu_time_total * 1e-6
    return seconds


def _training(case: Case, layout: torch.memory_format) -> Callable[[], None]:
    model = build_model(case.network, classes=CLASSES, channels=3, width=case.width, seed=0)
    model = model.to(memory_format=layout).train()  # type: ignore[call-overload]
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    # Our networks ask for channels last themselves; the other layout must be asked for behind that.
    first.register_forward_pre_hook(lambda _, inputs: (inputs[0].contiguous(memory_format=layout),))
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(case.batch, *SHAPE, generator=generator).contiguous(memory_format=layout)
    labels = torch.randint(0, CLASSES, (case.batch,), generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step
