"""Our messages as Flower's, and back. Bytes stay bytes: Flower carries them as one array of our own kind."""

from collections.abc import Callable
from logging import ERROR

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore import log

from fedmef.device.lost import Lost
from fedmef.device.measured import measured
from fedmef.errors import NoAnswerError, NotHeldError, UserError

TRAIN, WHICH_DEVICE = "train.round", "query.device"
STYPE = "fedmef.safetensors"
NOT_OURS = "a Flower message without one of ours in it: do both sides run this app?"


class MalformedError(Exception):
    """A node's message is not what it should be; that is the node's fault, never a reason to stop."""


def train_message(content: bytes, node: int, deadline: float | None = None) -> Message:
    """A round's message to a node; it is void after `deadline` seconds."""
    return Message(RecordDict({"fedmef": _array(content)}), node, TRAIN, ttl=deadline)


def which_device_message(node: int, deadline: float) -> Message:
    """Asks a node which device it is: Flower's own numbers are new in each run."""
    return Message(RecordDict(), node, WHICH_DEVICE, ttl=deadline)


def device_reply(message: Message, context: Context) -> Message:
    """A node says which device it is."""
    return Message(RecordDict({"fedmef": ConfigRecord({"device": device_number(context)})}), reply_to=message)


def device_number(context: Context) -> int:
    """Which device a node is."""
    number = context.node_config.get("partition-id")
    if not isinstance(number, int):
        raise UserError(
            f"partition-id = {number!r}: start the SuperNode with --node-config 'partition-id=0', "
            "each with a number of its own from 0 on"
        )
    return number


def device_of(reply: Message) -> int:
    """Which device a node says that it is; raises `MalformedError`."""
    record = reply.content.config_records.get("fedmef", ConfigRecord())
    device = record.get("device")
    if not isinstance(device, int):
        raise MalformedError(NOT_OURS)
    return device


def train_reply(message: Message, device: int, train: Callable[[], bytes]) -> Message:
    """A device's reply to a message: its answer and what it measured of itself, or why it has none."""
    try:
        with measured() as costs:
            answer = train()
    except NoAnswerError as reason:
        return _failure(Lost(str(reason)), message)
    except NotHeldError as error:  # an ordinary event: it will be sent everything
        return _failure(Lost.by_raising(device, error), message)
    except Exception as error:  # whatever a device's code raises costs its own update only
        log(ERROR, "device %d failed", device, exc_info=error)
        return _failure(Lost.by_raising(device, error), message)
    record = MetricRecord({"seconds": costs.seconds, "peak-memory": costs.peak_memory})
    return Message(RecordDict({"fedmef": _array(answer), "costs": record}), reply_to=message)


def _failure(lost: Lost, message: Message) -> Message:
    code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    return Message(Error(code, lost.to_text()), reply_to=message)


def content_of(message: Message) -> bytes:
    """The bytes that a message carries; raises `MalformedError`."""
    return bytes(_carrier(message).data)


def take_content(message: Message) -> bytes:
    """The same, and the message has them no more: Flower holds on to it for as long as a device trains."""
    array = _carrier(message)
    content, array.data = bytes(array.data), b""
    return content


def _carrier(message: Message) -> Array:
    array = message.content.array_records.get("fedmef", ArrayRecord()).get("message")
    if array is None or array.stype != STYPE:
        raise MalformedError(NOT_OURS)
    return array


def _array(content: bytes) -> ArrayRecord:
    return ArrayRecord({"message": Array("uint8", (len(content),), STYPE, content)})
