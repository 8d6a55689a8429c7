"""What the server makes of a node's reply: an update, or why there is none. No reply is trusted."""

from flwr.app import Message, MetricRecord
from flwr.common.constant import ErrorCode
from pydantic import ValidationError

from fedmef.device.lost import Lost
from fedmef.federation.engines.flower.translation import MalformedError, content_of
from fedmef.runs.records import DeviceReport

# What Flower answers in the place of a node whose message is void by now.
EXPIRED = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)


def answer_of(
    reply: Message | None, device: int, bytes_down: int, deadline: float | None
) -> tuple[bytes | Lost, DeviceReport | None]:
    """A device's answer and what it measured of itself, or why there is none."""
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
