"""The most bytes alive in a training step, by PyTorch's own allocator, in this process."""

import copy
import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile


def peak_of_step(model: nn.Module, images: Tensor) -> int:
    """Parameters, buffers, and the most that a forward and backward pass has alive beside them.

    The batch itself does not count. A copy of the model runs: its statistics and gradients stay as they are.
    `fedmef.costs.step` measures the same in a process of its own, with resident memory and seconds.
    """
    twin = copy.deepcopy(model).cpu()
    images = images.cpu()
    labels = torch.zeros(len(images), dtype=torch.int64)
    with torch.random.fork_rng(devices=[]):
        twin(images[:2])  # tables that are made once are made here
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            F.cross_entropy(twin(images), labels).backward()  # type: ignore[no-untyped-call]
    assert profiler.profiler is not None and profiler.profiler.kineto_results is not None  # noqa: PT018
    allocations = sorted(
        (event.start_ns(), event.nbytes())
        for event in profiler.profiler.kineto_results.events()
        if event.name() == "[memory]"
    )
    alive = itertools.accumulate((size for _, size in allocations), initial=0)
    return sum(tensor.nbytes for tensor in [*twin.parameters(), *twin.buffers()]) + int(max(alive))
