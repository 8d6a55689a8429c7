"""The truth about memory: what the allocator says, not what a formula does."""

import copy
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function

Built = TypeVar("Built")

WORK_BEGINS = "fedmef: work begins"


def bytes_kept_for_backward(model: nn.Module, images: Tensor, labels: Tensor | None = None) -> int:
    """Bytes that one forward pass allocates and that its backward pass still needs.

    PyTorch's CPU allocator reports every allocation and every release between the batch and the loss; when
    only the loss is held, what has not been released is what autograd keeps, whoever saved it and however.
    The parameters, the buffers and the images were there before, so they do not count.

    A copy of the model runs, in the mode (training or evaluation) that the model is in: its statistics and
    gradients stay as they are. `labels` are all 0 unless given.
    """
    twin = copy.deepcopy(model).cpu()
    images = images.cpu()
    labels = torch.zeros(len(images), dtype=torch.int64) if labels is None else labels.cpu()
    with torch.random.fork_rng(devices=[]):  # dropout draws numbers
        twin(images[:2])  # tables that are made once are made here
        with _watched_allocator() as profiler:
            loss = F.cross_entropy(twin(images), labels)
    del loss  # not before the profiler has stopped
    events: Any = profiler.events()  # type: ignore[no-untyped-call]
    return sum(int(event.self_cpu_memory_usage) for event in events or ())


def bytes_of_state(model: nn.Module, images: Tensor) -> int:
    """Parameters, masks and other buffers, and the gradients that a backward pass leaves.

    A copy of the model runs: its statistics and gradients stay as they are.
    """
    twin = copy.deepcopy(model).cpu()
    small = images[:2].cpu()
    with torch.random.fork_rng(devices=[]):
        F.cross_entropy(twin(small), torch.zeros(len(small), dtype=torch.int64)).backward()  # type: ignore[no-untyped-call]
    gradients = [parameter.grad for parameter in twin.parameters() if parameter.grad is not None]
    return sum(tensor.nbytes for tensor in [*twin.parameters(), *twin.buffers(), *gradients])


def peak_of_tensors(build: Callable[[], Built], work: Callable[[Built], object]) -> int:
    """The most bytes of tensors alive at once during `work(build())`, what `build` leaves included.

    PyTorch's CPU allocator reports every allocation and every release: temporaries inside a kernel or inside
    an autograd function of ours count like everything else.
    """
    with _watched_allocator() as profiler:
        built = build()
        with record_function(WORK_BEGINS):
            pass
        work(built)
    assert profiler.profiler is not None
    events = sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns())  # type: ignore[union-attr]
    alive = list(accumulate(event.nbytes() for event in events))  # what is no allocation has 0 bytes
    begins = next(index for index, event in enumerate(events) if event.name() == WORK_BEGINS)
    return int(max(alive[begins:]))


@contextmanager
def _watched_allocator() -> Iterator[profile]:
    """PyTorch's profiler, as an observer of the CPU's allocator."""
    level = "KINETO_LOG_LEVEL"
    given = os.environ.get(level)
    os.environ[level] = given or "6"  # else the profiler reports its own start and stop on stderr
    gc.collect()  # what was there before and goes while the profiler counts, it complains about on stderr
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            yield profiler
    finally:
        if given is None:
            del os.environ[level]
