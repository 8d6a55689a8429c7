"""What a device measures of itself in a round: seconds, peak memory, bytes."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from fedmef.device.resident import forget_peak, peak_resident


@dataclass(frozen=True)
class DeviceReport:
    """One device's round.

    Attributes:
        device: its number.
        seconds: from the message's arrival to the answer.
        peak_memory: most resident bytes of the process that trained, interpreter and libraries included.
        bytes_down: length of the message.
        bytes_up: length of the answer.
    """

    device: int
    seconds: float
    peak_memory: int
    bytes_down: int
    bytes_up: int


def measured(
    train: Callable[[int, bytes], bytes], device: int, messages: list[bytes]
) -> tuple[bytes, DeviceReport]:
    """What `train(device, message)` answers, and what that took.

    The message is taken out of its list: a device with little memory lets go of it before it trains.
    """
    length = len(messages[-1])
    forget_peak()
    started = time.perf_counter()
    answer = train(device, messages.pop())
    seconds = time.perf_counter() - started
    return answer, DeviceReport(device, seconds, peak_resident(), length, len(answer))
