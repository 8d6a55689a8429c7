"""Batches of a split, gathered, augmented and normalised a whole batch at a time."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from fedmef.data.dataset import Split
from fedmef.errors import UserError


def to_input(images: Tensor, mean: Tensor, std: Tensor, *, channels_last: bool = False) -> Tensor:
    """(images/255 − mean) / std in float32, on the images' device. mean and std are [C]."""
    scale = (1 / (255 * std)).to(images.device)[:, None, None]
    shift = (mean / std).to(images.device)[:, None, None]
    layout = torch.channels_last if channels_last else torch.preserve_format
    return images.to(torch.float32, memory_format=layout).mul_(scale).sub_(shift)


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image shifted by up to an eighth of its height, zeros coming in, and mirrored half of the time.

    For 32×32 images this is the usual random crop with a padding of 4. The generator alone decides, so
    that the same batch on another device moves alike.
    """
    count, _, height, width = images.shape
    padding = height // 8
    shifts = torch.randint(2 * padding + 1, (2, count), generator=generator, device=generator.device)
    mirrored = torch.randint(2, (count,), generator=generator, device=generator.device)
    top, left = shifts.to(images.device)

    padded = F.pad(images, (padding, padding, padding, padding))
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # [N, C, shifts, shifts, H, W], a view
    cropped = windows[torch.arange(count, device=images.device), :, top, left]
    mirror = mirrored.to(images.device, torch.bool)[:, None, None, None]
    return torch.where(mirror, cropped.flip(3), cropped)


def batches(
    split: Split,
    indices: Tensor,
    batch_size: int,
    mean: Tensor,
    std: Tensor,
    *,
    generator: torch.Generator | None,
    augmented: bool = False,
    device: torch.device | str = "cpu",
    channels_last: bool = False,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs [n, C, H, W] and labels [n] of these samples, once each; the last batch may be smaller.

    With a generator the samples are shuffled, without one they come in the order of `indices`. With
    `channels_last` the inputs lie in memory as [n, H, W, C].
    """
    if batch_size < 1:
        raise UserError(f"batch_size = {batch_size}: it must be at least 1")
    if augmented and generator is None:
        raise UserError("augmented batches are random: give them a generator")
    mean, std = mean.to(device), std.to(device)

    def draw() -> Iterator[tuple[Tensor, Tensor]]:
        order = indices if generator is None else indices[torch.randperm(len(indices), generator=generator)]
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            images = split.images[chosen].to(device)  # as uint8: a quarter of the traffic
            if augmented and generator is not None:
                images = augment(images, generator)
            inputs = to_input(images, mean, std, channels_last=channels_last)
            yield inputs, split.labels[chosen].to(device)

    return draw()
