"""Decoding many small image files into one array."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console
from rich.progress import track

from fedmef.errors import UserError
from fedmef.sparsity.arrays import Bytes


def decode_images(files: Sequence[Path], size: int, image_format: str, description: str) -> Bytes:
    """Square RGB images, uint8 [N, 3, size, size]; grey ones are made RGB."""
    images = np.empty((len(files), 3, size, size), dtype=np.uint8)
    console = Console(stderr=True)  # results alone belong on stdout
    shown = track(files, description, console=console, transient=True, disable=not console.is_terminal)
    for index, file in enumerate(shown):
        images[index] = _decode(file, size, image_format).transpose(2, 0, 1)
    return images


def _decode(file: Path, size: int, image_format: str) -> Bytes:
    try:
        with Image.open(file, formats=[image_format]) as image:
            # Before decoding: the header of a damaged file may promise gigabytes.
            if image.size != (size, size):
                raise ValueError(f"it is {image.width}×{image.height}, not {size}×{size}")
            return np.asarray(image.convert("RGB"))
    # Pillow raises OSError, SyntaxError, ValueError, struct.error and more for damaged files.
    except Exception as error:
        raise UserError(
            f"{file} is damaged ({error}): delete its data set's folder, and download or unpack it again"
        ) from error
