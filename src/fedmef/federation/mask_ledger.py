"""Which masks each device holds, as far as the server knows, so that it sends no more than is needed."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

Masks = Mapping[str, Tensor]


class MaskLedger:
    """The newest masks and those before them, and the devices that hold either."""

    def __init__(self, masks: Masks) -> None:
        self._masks = _copy(masks)
        self._before: dict[str, Tensor] = {}
        self._up_to_date: set[int] = set()
        self._one_behind: set[int] = set()

    def groups(self, devices: Iterable[int]) -> list[tuple[Masks | None, list[int]]]:
        """Devices that hold the same masks, together with these; None for devices that hold neither."""
        groups: tuple[tuple[Masks | None, list[int]], ...] = (
            (self._masks, []),
            (self._before, []),
            (None, []),
        )
        for device in devices:
            index = 0 if device in self._up_to_date else 1 if device in self._one_behind else 2
            groups[index][1].append(device)
        return [group for group in groups if group[1]]

    def note(self, device: int) -> None:
        """A device has got the newest masks."""
        self._up_to_date.add(device)
        self._one_behind.discard(device)

    def forget(self, device: int) -> None:
        """A device has lost its masks: it will be sent all of them."""
        self._up_to_date.discard(device)
        self._one_behind.discard(device)

    def advance(self, masks: Masks) -> None:
        """The masks may have changed."""
        if all(torch.equal(mask.cpu(), self._masks[name]) for name, mask in masks.items()):
            return
        self._before, self._masks = self._masks, _copy(masks)
        self._one_behind, self._up_to_date = self._up_to_date, set()

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must hold beside the newest masks, which are the model's."""
        return {
            "up_to_date": torch.tensor(sorted(self._up_to_date), dtype=torch.int64),
            "one_behind": torch.tensor(sorted(self._one_behind), dtype=torch.int64),
            **{f"before/{name}": mask for name, mask in self._before.items()},
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """The inverse of `state`; nothing at all says that no device holds any masks."""
        nobody = torch.empty(0, dtype=torch.int64)
        self._up_to_date = set(state.get("up_to_date", nobody).tolist())
        self._one_behind = set(state.get("one_behind", nobody).tolist())
        self._before = {
            name.removeprefix("before/"): mask for name, mask in state.items() if name.startswith("before/")
        }


def _copy(masks: Masks) -> dict[str, Tensor]:
    return {name: mask.detach().cpu().clone() for name, mask in masks.items()}
