"""Which key is which device: the first that says so is it for the whole run, however often it is resumed.

A node says itself which device it is. Its key is what nobody else has, so a device belongs to a key: a second
one that says the same is refused, and costs nobody else anything. Whoever registers a key may also decide: a
SuperNode registered with `--name device-3` can be device 3 and no other, and replaces a key without a name.
"""

import hashlib
import re
from pathlib import Path

from flwr.proto.node_pb2 import NodeInfo
from pydantic import BaseModel, ConfigDict, ValidationError

from fedmef.errors import UserError
from fedmef.runs.reading import read_ordinary
from fedmef.wire.files import write_atomically

MAXIMUM_BYTES = 2**24
NAME = re.compile(r"device-(\d{1,9})")


class _Claims(BaseModel):
    """As they are written down: keys by their fingerprints."""

    model_config = ConfigDict(extra="forbid")

    devices: dict[int, str] = {}
    refused: dict[str, str] = {}


class Owners:
    """The keys of a run's devices, and what other keys were refused."""

    def __init__(self) -> None:
        self._claims = _Claims()
        self._written = b""

    @classmethod
    def read(cls, file: Path) -> "Owners":
        """Those of a run that is resumed; none where nobody wrote any."""
        owners = cls()
        try:
            owners._written = read_ordinary(file, MAXIMUM_BYTES)
            owners._claims = _Claims.model_validate_json(owners._written)
        except FileNotFoundError:
            pass
        except (UserError, ValidationError):
            raise UserError(
                f"{file} is damaged: without it any registered node may be any device; put it back, or "
                "delete it if you trust them all"
            ) from None
        return owners

    def write(self, file: Path) -> None:
        """Write them down, if there is anything new."""
        text = self._claims.model_dump_json(indent=2).encode() + b"\n"
        if text != self._written:
            write_atomically(file, text)
            self._written = text

    def claim(self, node: NodeInfo, device: int, holder: NodeInfo | None = None) -> str | None:
        """A node says that it is this device: None if it is, otherwise why it is not.

        `holder` is the node that is this device so far, if it is connected.
        """
        key, registered = fingerprint(node.public_key), _registered_as(node)
        owner = self._claims.devices.get(device)
        others = [other for other, its_key in self._claims.devices.items() if its_key == key]
        if registered not in (None, device):
            reason = f"the key {key} was registered as {node.name} and says that it is device {device}"
        elif registered is None and others and others != [device]:
            reason = (
                f"the key {key} is device {others[0]} and says that it is device {device}; to change that, "
                f"register it with --name device-{device}"
            )
        elif owner in (None, key) or (
            registered == device and (holder is None or _registered_as(holder) is None)
        ):
            self._claims.devices[device] = key
            return None
        else:
            reason = (
                f"the key {key} says that it is device {device}, which is the key {owner}; if it replaces "
                f"that one, register it with --name device-{device}"
            )
        self._claims.refused[key] = reason
        return reason


def _registered_as(node: NodeInfo) -> int | None:
    """The device that whoever registered the key gave it to."""
    named = NAME.fullmatch(node.name)
    return int(named[1]) if named else None


def fingerprint(public_key: bytes) -> str:
    """A key's short name."""
    return hashlib.sha256(public_key).hexdigest()[:16]
