"""What is known of a data set without fetching it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Facts:
    """The shape of an image, the classes, and how many images there are to train on."""

    shape: tuple[int, int, int]
    classes: int
    train: int
