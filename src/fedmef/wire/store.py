"""What a device holds from earlier rounds, so that it need not be sent again: the network, and masks.

Both are known by a hash of their content. Equal content has one name and needs one copy: the devices of a
simulation share a folder, a device of its own has its own.
"""

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from fedmef.errors import FedmefError, NotHeldError
from fedmef.sparsity.arrays import Bytes
from fedmef.sparsity.model import Masks
from fedmef.sparsity.network import MAXIMUM_BYTES as LARGEST_NETWORK
from fedmef.sparsity.network import Network
from fedmef.wire.container import MAXIMUM_BYTES, decode, encode
from fedmef.wire.files import read_bounded, write_atomically

# A message builds on the last masks or those before them; one more, for a device whose answer got lost.
VERSIONS_KEPT = 3


def mask_version(masks: Masks) -> str:
    """What tells these masks from others: a hash of the layers' names and packed masks."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(masks):
        digest.update(f"{name}\0{masks[name].size}\0".encode())
        digest.update(masks[name].data)
    return digest.hexdigest()


parse_network = lru_cache(maxsize=4)(Network.from_json)  # the same one comes with every message


@dataclass(frozen=True)
class Store:
    """Masks and networks in a folder, a file each; the oldest go.

    Attributes:
        parents: make the folders above it too. A run's are not made again when somebody removes the run.
    """

    folder: Path
    parents: bool = True

    def remember_masks(self, masks: Masks, version: str) -> None:
        """Keep masks; others that do the same at the same time do no harm."""
        self._remember(f"{version}.safetensors", lambda: encode(masks, {}))

    def recall_masks(self, version: str) -> dict[str, Bytes]:
        """The masks of a version; raises `NotHeldError` when they are not there, or damaged: those go."""
        file = self.folder / f"{version}.safetensors"
        try:
            masks, _ = decode(read_bounded(file, MAXIMUM_BYTES))
        except (OSError, FedmefError):
            masks = {}
        if mask_version(masks) != version:
            raise self._not_held(file, f"the masks {version}")
        return masks

    def remember_network(self, network: Network) -> None:
        """Keep a network."""
        self._remember(f"{network.digest}.json", network.to_json)

    def recall_network(self, digest: str) -> Network:
        """The network of this digest; raises `NotHeldError` when it is not there, or damaged."""
        file = self.folder / f"{digest}.json"
        try:
            network = parse_network(read_bounded(file, LARGEST_NETWORK))
        except (OSError, FedmefError):
            raise self._not_held(file, f"the network {digest}") from None
        if network.digest != digest:
            raise self._not_held(file, f"the network {digest}")
        return network

    def _remember(self, name: str, content: Callable[[], bytes]) -> None:
        file = self.folder / name
        self.folder.mkdir(parents=self.parents, exist_ok=True)
        try:
            os.utime(file)
        except FileNotFoundError:
            write_atomically(file, content())
        kept = sorted(self.folder.glob(f"*{file.suffix}"), key=_age)
        for old in kept[VERSIONS_KEPT:]:
            old.unlink(missing_ok=True)

    def _not_held(self, file: Path, what: str) -> NotHeldError:
        with suppress(OSError):
            file.unlink()  # it would be taken for a good one
        return NotHeldError(
            f"{self.folder} does not hold {what}, which this message builds on: all of it must be sent"
        )


def _age(file: Path) -> float:
    """How long ago, compared with other files; a file that someone else just removed is the oldest."""
    try:
        return -file.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
