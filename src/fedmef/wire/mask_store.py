"""The masks that a device holds from earlier rounds, so that they need not be sent again.

Masks are known by their version: a hash of their content. Equal masks have one version, and need one copy:
the devices of a simulation share a folder, a device of its own has its own.
"""

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from fedmef.wire.container import decode, encode
from fedmef.wire.errors import MaskMissingError, MessageError
from fedmef.wire.files import write_atomically

# A message builds on the last masks or those before them; one more, for a device whose answer got lost.
VERSIONS_KEPT = 3

Masks = Mapping[str, Tensor]


def mask_version(masks: Masks) -> str:
    """What tells these masks from others: a hash of the layers' names and packed masks."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(masks):
        content = masks[name].cpu().numpy()
        digest.update(f"{name}\0{content.size}\0".encode())
        digest.update(content.data)
    return digest.hexdigest()


@dataclass(frozen=True)
class MaskMemory:
    """Masks in a folder, a file for each version; the oldest go."""

    folder: Path

    def remember(self, masks: Masks, version: str) -> None:
        """Keep masks; others that do the same at the same time do no harm."""
        file = self._file(version)
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            os.utime(file)
        except FileNotFoundError:
            write_atomically(file, encode(masks, {}))
        kept = sorted(self.folder.glob("*.safetensors"), key=_age)
        for old in kept[VERSIONS_KEPT:]:
            old.unlink(missing_ok=True)

    def recall(self, version: str) -> dict[str, Tensor]:
        """The masks of a version; raises `MaskMissingError` when they are not there, or damaged: those go."""
        try:
            masks, _ = decode(self._file(version).read_bytes())
        except (OSError, MessageError):
            masks = {}
        if mask_version(masks) != version:
            with suppress(OSError):
                self._file(version).unlink()  # `remember` would take it for a good one
            raise MaskMissingError(
                f"{self.folder} does not hold the masks {version}, which this message builds on: it must be "
                "sent with all masks"
            )
        return masks

    def _file(self, version: str) -> Path:
        return self.folder / f"{version}.safetensors"


def _age(file: Path) -> float:
    """How long ago, compared with other files; a file that someone else just removed is the oldest."""
    try:
        return -file.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
