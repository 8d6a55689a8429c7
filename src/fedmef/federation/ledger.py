"""What each device holds, as far as the server knows, so that it sends no more than is needed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from fedmef.sparsity.arrays import Array
from fedmef.sparsity.model import Masks


@dataclass(frozen=True, eq=False)
class Group:
    """Devices that hold the same: these masks (None: neither of them), and the network or not."""

    masks: Masks | None
    knows_network: bool
    devices: list[int]


class Ledger:
    """The newest masks and those before them, and the devices that hold either; a network holds for ever."""

    def __init__(self, masks: Masks) -> None:
        self._masks: Masks = dict(masks)
        self._before: Masks = {}
        self._up_to_date: set[int] = set()
        self._one_behind: set[int] = set()
        self._knows_network: set[int] = set()

    def groups(self, devices: Iterable[int]) -> list[Group]:
        """These devices, grouped by what they hold."""
        groups: dict[tuple[int, bool], Group] = {}
        choices = (self._masks, self._before, None)
        for device in devices:
            index = 0 if device in self._up_to_date else 1 if device in self._one_behind else 2
            known = device in self._knows_network
            group = groups.setdefault((index, known), Group(choices[index], known, []))
            group.devices.append(device)
        return list(groups.values())

    def note(self, device: int) -> None:
        """A device has got the newest masks and the network."""
        self._up_to_date.add(device)
        self._one_behind.discard(device)
        self._knows_network.add(device)

    def forget(self, device: int) -> None:
        """Nobody knows what a device holds: it will be sent everything."""
        for held in (self._up_to_date, self._one_behind, self._knows_network):
            held.discard(device)

    def advance(self, masks: Masks) -> None:
        """The masks may have changed."""
        if all(np.array_equal(mask, self._masks[name]) for name, mask in masks.items()):
            return
        self._before, self._masks = self._masks, dict(masks)
        self._one_behind, self._up_to_date = self._up_to_date, set()

    def newcomers(self) -> Masks:
        """What has grown at the last change of the masks; {} before the first one."""
        return {name: mask & ~self._before[name] for name, mask in self._masks.items() if self._before}

    def state(self) -> dict[str, Array]:
        """What a checkpoint must hold besides the newest masks, which are the model's."""
        return {
            "up_to_date": np.array(sorted(self._up_to_date), dtype=np.int64),
            "one_behind": np.array(sorted(self._one_behind), dtype=np.int64),
            "knows_network": np.array(sorted(self._knows_network), dtype=np.int64),
            **{f"before/{name}": mask for name, mask in self._before.items()},
        }

    def restore(self, state: Mapping[str, Array]) -> None:
        """The inverse of `state`; nothing at all says that no device holds anything."""
        nobody = np.empty(0, dtype=np.int64)
        self._up_to_date = set(state.get("up_to_date", nobody).tolist())
        self._one_behind = set(state.get("one_behind", nobody).tolist())
        self._knows_network = set(state.get("knows_network", nobody).tolist())
        self._before = {
            name.removeprefix("before/"): mask for name, mask in state.items() if name.startswith("before/")
        }
