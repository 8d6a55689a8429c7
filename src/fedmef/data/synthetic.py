"""Made-up images of any size and number: each class a smooth random picture, under noise. Easily learnt."""

from dataclasses import dataclass

import numpy as np

from fedmef.data.dataset import Dataset, Split
from fedmef.errors import UserError
from fedmef.experiment.randomness import generator_for
from fedmef.sparsity.arrays import Array

CHUNK = 1024  # images at a time: the noise is drawn in 32 bits
GRID = 4  # random points of a picture, down and across


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
        channels, height, width = self.shape
        generator = generator_for(self.seed, "templates")
        grid = generator.standard_normal((self.classes, channels, GRID, GRID))
        templates = (_smoothing(height) @ grid @ _smoothing(width).T).astype(np.float32)
        train, test = (self._split(templates, part, count) for part, count in self._counts())
        return Dataset("synthetic", train, test, self.classes)

    def _counts(self) -> tuple[tuple[str, int], tuple[str, int]]:
        return ("train", self.train), ("test", self.test)

    def _split(self, templates: Array, part: str, count: int) -> Split:
        generator = generator_for(self.seed, "synthetic images", part)
        labels = generator.permutation(np.arange(count) % self.classes)
        images = np.empty((count, *self.shape), dtype=np.uint8)
        for start in range(0, count, CHUNK):
            chosen = templates[labels[start : start + CHUNK]]
            noise = generator.standard_normal(chosen.shape, dtype=np.float32)
            images[start : start + CHUNK] = (128 + 32 * (chosen + noise)).clip(0, 255)
        return Split(images, labels)


def _smoothing(size: int) -> Array:
    """[size, GRID]: linear interpolation between the centres of the grid's cells."""
    places = ((np.arange(size) + 0.5) * GRID / size - 0.5).clip(0, GRID - 1)
    weights: Array = np.maximum(0.0, 1 - np.abs(places[:, None] - np.arange(GRID)))
    return weights
