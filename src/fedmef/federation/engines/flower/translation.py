"""Our messages as Flower's, and back. Bytes stay bytes: Flower carries them as one array of our own kind."""

from collections.abc import Callable
from logging import ERROR

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore import log
from pydantic import ValidationError

from fedmef.device.measured import measured
from fedmef.errors import NoAnswerError, NotHeldError, UserError
from fedmef.federation.engines.base import Lost
from fedmef.runs.records import DeviceReport

TRAIN, WHICH_DEVICE = "train.round", "query.device"
STYPE = "fedmef.safetensors"
NOT_OURS = "a Flower message without one of ours in it: do both sides run this app?"
# What Flower answers in the place of a node whose message is void by now.
EXPIRED = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)


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


def train_reply(message: Message, device: int, train: Callable[[int, bytes], bytes]) -> Message:
    """A device's round: its answer and what it measured of itself, or why it has none."""
    try:
        with measured() as costs:
            answer = train(device, content_of(message))
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


def answer_of(
    reply: Message | None, device: int, bytes_down: int, deadline: float | None
) -> tuple[bytes | Lost, DeviceReport | None]:
    """A device's answer and what it measured of itself, or why there is none. No reply is trusted."""
    late = Lost.too_late(deadline) if deadline else Lost("no answer")
    if reply is None or (reply.has_error() and reply.error.code in EXPIRED):
        return late, None
    if reply.has_error():
        return lost_of(reply), None
    try:
        answer = content_of(reply)
        report = _report_of(reply, device, bytes_down, len(answer))
    except MalformedError as error:
        return Lost(str(error)), None
    if deadline is not None and report.seconds > deadline:
        return late, None
    return answer, report


def lost_of(reply: Message) -> Lost:
    """Why a node gave no answer; what is not from us has no traceback."""
    reason = reply.error.reason or "its node reported an error"
    if "ray.exceptions.Actor" in reason:  # three paragraphs, of addresses and log files
        return Lost("its worker process died: killed, or out of memory (fewer workers need less)")
    return Lost.from_text(reason)


def content_of(message: Message) -> bytes:
    """The bytes that a message carries; raises `MalformedError`."""
    record = message.content.array_records.get("fedmef", ArrayRecord())
    array = record.get("message")
    if array is None or array.stype != STYPE:
        raise MalformedError(NOT_OURS)
    return bytes(array.data)


def _report_of(reply: Message, device: int, bytes_down: int, bytes_up: int) -> DeviceReport:
    costs = reply.content.metric_records.get("costs", MetricRecord())
    try:
        return DeviceReport(
            device=device,
            seconds=costs.get("seconds"),  # type: ignore[arg-type]
            peak_memory=costs.get("peak-memory"),  # type: ignore[arg-type]
            bytes_down=bytes_down,
            bytes_up=bytes_up,
        )
    except ValidationError:
        raise MalformedError("its answer does not say what it cost: seconds and peak-memory") from None


def _array(content: bytes) -> ArrayRecord:
    return ArrayRecord({"message": Array("uint8", (len(content),), STYPE, content)})
