"""How good a model is on a split."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from fedmef.data import Split, batches
from fedmef.models import wants_channels_last

BATCH_SIZE = 256


@dataclass(frozen=True)
class Score:
    """Share of samples that are classified rightly, and mean cross-entropy."""

    accuracy: float
    loss: float


@torch.no_grad()
def evaluate(
    model: nn.Module,
    split: Split,
    statistics: tuple[torch.Tensor, torch.Tensor],
    device: torch.device | str = "cpu",
) -> Score:
    """Score a model on all samples of a split."""
    training = model.training
    model.eval()
    correct = torch.zeros((), dtype=torch.int64, device=device)
    loss = torch.zeros((), dtype=torch.float64, device=device)
    everything = torch.arange(len(split))
    inputs = batches(
        split,
        everything,
        BATCH_SIZE,
        *statistics,
        generator=None,
        device=device,
        channels_last=wants_channels_last(model),
    )
    for images, labels in inputs:
        logits = model(images)
        correct += (logits.argmax(1) == labels).sum()
        loss += F.cross_entropy(logits, labels, reduction="sum").double()
    model.train(training)
    return Score(int(correct) / len(split), float(loss) / len(split))
