"""Made-up images of any size and number: each class a smooth random picture, under noise. Easily learnt."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedmef.data.dataset import Dataset, Split
from fedmef.errors import UserError
from fedmef.experiment.randomness import torch_generator

CHUNK = 1024  # images at a time: the noise is drawn in 32 bits


@dataclass(frozen=True)
class SyntheticImages:
    """What to make.

    shape: channels, height and width of an image.
    classes: how many; each sample count must reach it, so that no class is missing.
    train, test: how many images of each; the classes are equally frequent.
    seed: decides the pictures, the noise and the order.
    """

    shape: tuple[int, int, int] = (3, 32, 32)
    classes: int = 10
    train: int = 2000
    test: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.shape) < 1 or self.classes < 1:
            raise UserError(
                f"synthetic shape = {self.shape}, classes = {self.classes}: all must be at least 1"
            )
        if min(self.train, self.test) < self.classes:
            raise UserError(
                f"synthetic train = {self.train}, test = {self.test}: "
                f"both must be at least classes = {self.classes}"
            )

    def make(self) -> Dataset:
        """The data set; the same options always make the same one."""
        grid = torch.randn(
            self.classes, self.shape[0], 4, 4, generator=torch_generator(self.seed, "templates")
        )
        templates = F.interpolate(grid, size=self.shape[1:], mode="bilinear", align_corners=False)
        train, test = (self._split(templates, part, count) for part, count in self._counts())
        return Dataset("synthetic", train, test, self.classes)

    def _counts(self) -> tuple[tuple[str, int], tuple[str, int]]:
        return ("train", self.train), ("test", self.test)

    def _split(self, templates: Tensor, part: str, count: int) -> Split:
        generator = torch_generator(self.seed, "synthetic images", part)
        labels = (torch.arange(count) % self.classes)[torch.randperm(count, generator=generator)]
        images = torch.empty(count, *self.shape, dtype=torch.uint8)
        for start in range(0, count, CHUNK):
            chosen = templates[labels[start : start + CHUNK]]
            noise = torch.randn(chosen.shape, generator=generator)
            images[start : start + CHUNK] = (128 + 32 * (chosen + noise)).clamp(0, 255).to(torch.uint8)
        return Split(images, labels)
