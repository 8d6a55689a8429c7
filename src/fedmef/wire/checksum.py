"""A checksum over every byte of a message: what a disk or a network damaged is noticed.

It stands in the message's own header, so that the message stays a plain safetensors file. It is no signature:
whoever writes a message can write its checksum too.
"""

import hashlib

UNSET = "0" * 32  # what stands in the place of the checksum while it is computed


def stamp(head: bytes, *rest: bytes | memoryview) -> bytes:
    """The parts of a message as one, with the checksum in the head's place for it, where `UNSET` stands."""
    before, after = _around(head, UNSET)
    return b"".join((before, _checksum(before, after, *rest).encode(), after, *rest))


def is_intact(message: bytes, checksum: str) -> bool:
    """Whether no byte of the message changed since it was stamped with this checksum."""
    try:
        return _checksum(*_around(message, checksum)) == checksum
    except ValueError:
        return False


def _around(message: bytes, checksum: str) -> tuple[memoryview, memoryview]:
    marker = f'\\"checksum\\": \\"{checksum}'.encode()  # JSON within JSON
    end = message.index(marker) + len(marker)
    whole = memoryview(message)  # not copied: a device has little memory
    return whole[: end - len(checksum)], whole[end:]


def _checksum(before: memoryview, *after: bytes | memoryview) -> str:
    digest = hashlib.blake2b(before, digest_size=16)
    digest.update(UNSET.encode())
    for part in after:
        digest.update(part)
    return digest.hexdigest()
