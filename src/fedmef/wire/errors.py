"""What can be wrong with a message."""

from fedmef.errors import FedmefError


class MessageError(FedmefError):
    """Bytes that are not a message of ours, or not one for this receiver."""


class MaskMissingError(FedmefError):
    """A message builds on masks that this device does not hold: it must be sent again with all masks."""


class ValueRangeError(FedmefError):
    """A value is too large for the type that values have on the wire."""
