import numpy as np

from fedmef.federation.ledger import Ledger
from fedmef.sparsity.arrays import Bytes


def masks(number: int) -> dict[str, Bytes]:
    return {"conv": np.array([number], dtype=np.uint8)}


def held(ledger: Ledger, devices: range) -> dict[int, int | None]:
    """The number in the masks that each device holds."""
    return {
        device: None if group.masks is None else int(group.masks["conv"][0])
        for group in ledger.groups(devices)
        for device in group.devices
    }


def knowing(ledger: Ledger, devices: range) -> set[int]:
    """The devices that hold the network."""
    return {device for group in ledger.groups(devices) if group.knows_network for device in group.devices}


def adjusted_twice() -> Ledger:
    ledger = Ledger(masks(1))
    for device in (0, 1):
        ledger.note(device)
    ledger.advance(masks(2))
    for device in (1, 2):
        ledger.note(device)
    ledger.advance(masks(3))
    ledger.note(2)
    ledger.note(3)
    return ledger


def test_at_first_nobody_holds_anything() -> None:
    assert held(Ledger(masks(1)), range(2)) == {0: None, 1: None}
    assert knowing(Ledger(masks(1)), range(2)) == set()


def test_devices_hold_the_newest_masks_or_those_before_or_none_that_help() -> None:
    assert held(adjusted_twice(), range(5)) == {0: None, 1: 2, 2: 3, 3: 3, 4: None}


def test_a_device_that_has_the_network_has_it_for_ever() -> None:
    ledger = adjusted_twice()
    assert knowing(ledger, range(5)) == {0, 1, 2, 3}  # device 0 too, though its masks are out of date
    ledger.advance(masks(4))
    ledger.advance(masks(5))
    assert knowing(ledger, range(5)) == {0, 1, 2, 3}
    assert held(ledger, range(5)) == dict.fromkeys(range(5))


def test_devices_are_grouped_by_what_they_hold_whatever_their_order() -> None:
    groups = adjusted_twice().groups([4, 3, 2, 1, 0])
    assert [(group.devices, group.knows_network) for group in groups] == [
        ([4], False),
        ([3, 2], True),
        ([1], True),
        ([0], True),
    ]


def test_masks_that_stay_the_same_make_nobody_fall_behind() -> None:
    ledger = adjusted_twice()
    ledger.advance(masks(3))
    assert held(ledger, range(1, 4)) == {1: 2, 2: 3, 3: 3}


def test_a_device_that_was_lost_is_sent_everything() -> None:
    ledger = adjusted_twice()
    ledger.forget(2)
    ledger.forget(4)
    assert held(ledger, range(2, 4)) == {2: None, 3: 3}
    assert knowing(ledger, range(2, 4)) == {3}


def test_a_restored_ledger_knows_the_same() -> None:
    ledger = Ledger(masks(3))
    ledger.restore(adjusted_twice().state())
    assert held(ledger, range(5)) == held(adjusted_twice(), range(5))
    assert knowing(ledger, range(5)) == knowing(adjusted_twice(), range(5))


def test_nothing_to_restore_says_that_nobody_holds_anything() -> None:
    ledger = adjusted_twice()
    ledger.restore({})
    assert held(ledger, range(5)) == dict.fromkeys(range(5))
    assert knowing(ledger, range(5)) == set()
