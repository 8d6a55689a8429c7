"""What the server makes of a node's reply: an update, or why there is none. No reply is trusted."""

from flwr.app import Message, MetricRecord
from flwr.common.constant import ErrorCode

from fedmef.device.lost import Lost
from fedmef.federation.engines.flower.translation import MalformedError, content_of
from fedmef.runs.records import DeviceReport, Failed, received_report

# What Flower answers in the place of a node whose message is void by now.
EXPIRED = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)


def answer_of(
    reply: Message | None, device: int, bytes_down: int, deadline: float | None
) -> tuple[bytes | Lost, DeviceReport | Failed | None]:
    """A device's answer and what it measured of itself, or why there is none."""
    late = Lost.too_late(deadline) if deadline else Lost("no answer")
    if reply is None or (reply.has_error() and reply.error.code in EXPIRED):
        return late, None
    if reply.has_error():
        return lost_of(reply), None
    try:
        answer = content_of(reply)
    except MalformedError as error:
        return Lost(str(error)), None
    report = _report_of(reply, device, bytes_down, len(answer))
    if deadline is not None and isinstance(report, DeviceReport) and report.seconds > deadline:
        return late, None
    return answer, report


def lost_of(reply: Message) -> Lost:
    """Why a node gave no answer; what is not from us has no traceback."""
    reason = reply.error.reason or "its node reported an error"
    if "ray.exceptions.Actor" in reason:  # three paragraphs, of addresses and log files
        return Lost("its worker process died: killed, or out of memory (fewer workers need less)")
    return Lost.from_text(reason)


def _report_of(reply: Message, device: int, bytes_down: int, bytes_up: int) -> DeviceReport | Failed:
    costs = reply.content.metric_records.get("costs", MetricRecord())
    return received_report(
        device, costs.get("seconds"), costs.get("peak-memory"), bytes_down=bytes_down, bytes_up=bytes_up
    )
