"""Our messages as Flower's, and back. Bytes stay bytes: Flower carries them as one array of our own kind."""

from collections.abc import Callable
from logging import ERROR

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore import log

from fedmef.engines.base import Lost
from fedmef.engines.reports import DeviceReport, measured
from fedmef.errors import FedmefError, UserError
from fedmef.faults import InjectedFault

TRAIN, WHICH_DEVICE = "train.round", "query.device"
STYPE = "fedmef.safetensors"


def train_message(content: bytes, node: int, deadline: float | None = None) -> Message:
    """A round's message to a node; it is void after `deadline` seconds."""
    return Message(RecordDict({"fedmef": _array(content)}), node, TRAIN, ttl=deadline)


def which_device_message(node: int, deadline: float) -> Message:
    """Asks a node which device it is: Flower's own numbers are new in each run."""
    return Message(RecordDict(), node, WHICH_DEVICE, ttl=deadline)


def device_reply(message: Message, context: Context) -> Message:
    """The answer to that."""
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
    """Which device a node says that it is."""
    return int(reply.content.config_records["fedmef"]["device"])  # type: ignore[arg-type]


def train_reply(message: Message, device: int, train: Callable[[int, bytes], bytes]) -> Message:
    """A device's round: its answer and what it measured of itself, or why it has none."""
    try:
        answer, report = measured(train, device, content_of(message))
    except InjectedFault as fault:
        return _failure(Lost(str(fault)), message)
    except Exception as error:  # whatever a device's code raises costs its own update only
        log(ERROR, "device %d failed", device, exc_info=error)
        return _failure(Lost.by_raising(device, error), message)
    costs = MetricRecord({"seconds": report.seconds, "peak-memory": report.peak_memory})
    return Message(RecordDict({"fedmef": _array(answer), "costs": costs}), reply_to=message)


def _failure(lost: Lost, message: Message) -> Message:
    code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    return Message(Error(code, f"{lost.reason}\0{lost.traceback}"), reply_to=message)


def lost_of(reply: Message) -> Lost:
    """Why a node gave no answer; what is not from us has no traceback."""
    reason, _, trace = (reply.error.reason or "its node reported an error").partition("\0")
    return Lost(reason, trace)


def content_of(message: Message) -> bytes:
    """The bytes that a message carries."""
    record = message.content.array_records.get("fedmef", ArrayRecord())
    array = record.get("message")
    if array is None or array.stype != STYPE:
        raise FedmefError("a Flower message without one of ours in it: do both sides run this app?")
    return bytes(array.data)


def report_of(reply: Message, device: int, bytes_down: int) -> DeviceReport:
    """What a device measured of itself."""
    costs = reply.content.metric_records["costs"]
    seconds, peak_memory = costs["seconds"], costs["peak-memory"]
    assert isinstance(seconds, float)
    assert isinstance(peak_memory, int)
    return DeviceReport(device, seconds, peak_memory, bytes_down, len(content_of(reply)))


def _array(content: bytes) -> ArrayRecord:
    return ArrayRecord({"message": Array("uint8", (len(content),), STYPE, content)})
