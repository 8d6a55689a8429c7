"""BatchNorm that survives a batch with one value per channel, which has no variance to divide by."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class _Guarded(_BatchNorm):
    """Such a batch is normalised with the running statistics, or to 0 where there are none."""

    def forward(self, input: Tensor) -> Tensor:
        if input.numel() > input.shape[1] or not (self.training or self.running_mean is None):
            return super().forward(input)
        mean, variance = self.running_mean, self.running_var
        if mean is None or variance is None:
            mean, variance = input.detach().flatten(), torch.ones_like(input.detach().flatten())
        return F.batch_norm(input, mean, variance, self.weight, self.bias, training=False, eps=self.eps)


class BatchNorm1d(_Guarded, nn.BatchNorm1d):
    """Drop-in for `nn.BatchNorm1d`."""


class BatchNorm2d(_Guarded, nn.BatchNorm2d):
    """Drop-in for `nn.BatchNorm2d`."""


@contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Inside the block training uses a batch's statistics as ever, and the running ones stay as they are."""
    tracking = [
        module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats
    ]
    try:
        for module in tracking:
            module.track_running_stats = False
        yield
    finally:
        for module in tracking:
            module.track_running_stats = True


def guard_batchnorm(model: nn.Module) -> nn.Module:
    """Let every BatchNorm of a model survive such a batch. Weights, names and results stay as they are."""
    for module in model.modules():
        if type(module) is nn.BatchNorm1d:
            module.__class__ = BatchNorm1d
        elif type(module) is nn.BatchNorm2d:
            module.__class__ = BatchNorm2d
    return model
