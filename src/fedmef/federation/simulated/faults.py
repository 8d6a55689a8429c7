"""What an injected fault does to a device: it drops out, is late, answers garbage or is killed; for tests."""

from fedmef.errors import NoAnswerError
from fedmef.experiment.randomness import generator_for


class InjectedFault(NoAnswerError):  # noqa: N818  (it is a fault, and meant to be one)
    """A device fails because it was told to."""


class TooLate(InjectedFault):
    """It does not answer in time."""


class Killed(InjectedFault):
    """Its process is killed, as by a system that is out of memory."""


def raise_fault(fault: str | None) -> None:
    """Raise what keeps a device from training, if it has such a fault."""
    if fault == "drop":
        raise InjectedFault("dropped out (injected)")
    if fault == "slow":
        raise TooLate("too late (injected)")
    if fault == "kill":
        raise Killed("its process was killed (injected)")


def corrupt(answer: bytes, seed: int, round_number: int, device: int) -> bytes:
    """The answer with a part missing, or with some bytes changed, or nothing but noise."""
    generator = generator_for(seed, "corruption", round_number, device)
    way = generator.integers(3)
    if way == 0:
        return answer[: generator.integers(len(answer))]
    if way == 1:
        return generator.bytes(len(answer))
    damaged = bytearray(answer)
    for position in generator.integers(len(answer), size=8):
        damaged[position] ^= int(generator.integers(1, 256))
    return bytes(damaged)
