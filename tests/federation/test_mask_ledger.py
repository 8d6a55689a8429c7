import torch
from torch import Tensor

from fedmef.federation.mask_ledger import MaskLedger


def masks(number: int) -> dict[str, Tensor]:
    return {"conv": torch.tensor([number], dtype=torch.uint8)}


def held(ledger: MaskLedger, devices: range) -> dict[int, int | None]:
    """The number in the masks that each device holds."""
    return {
        device: None if known is None else int(known["conv"])
        for known, members in ledger.groups(devices)
        for device in members
    }


def adjusted_twice() -> MaskLedger:
    ledger = MaskLedger(masks(1))
    for device in (0, 1):
        ledger.note(device)
    ledger.advance(masks(2))
    for device in (1, 2):
        ledger.note(device)
    ledger.advance(masks(3))
    ledger.note(2)
    ledger.note(3)
    return ledger


def test_at_first_nobody_holds_masks() -> None:
    assert held(MaskLedger(masks(1)), range(2)) == {0: None, 1: None}


def test_devices_hold_the_newest_masks_or_those_before_or_none_that_help() -> None:
    assert held(adjusted_twice(), range(5)) == {0: None, 1: 2, 2: 3, 3: 3, 4: None}


def test_masks_that_stay_the_same_make_nobody_fall_behind() -> None:
    ledger = adjusted_twice()
    ledger.advance(masks(3))
    assert held(ledger, range(1, 4)) == {1: 2, 2: 3, 3: 3}


def test_a_device_that_lost_its_masks_gets_all() -> None:
    ledger = adjusted_twice()
    ledger.forget(2)
    ledger.forget(4)
    assert held(ledger, range(2, 4)) == {2: None, 3: 3}


def test_a_restored_ledger_knows_the_same() -> None:
    ledger = MaskLedger(masks(3))
    ledger.restore(adjusted_twice().state())
    assert held(ledger, range(5)) == held(adjusted_twice(), range(5))
