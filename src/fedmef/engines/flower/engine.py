"""The engine on Flower's Grid: the same in a simulation and on a fleet."""

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from fedmef.engines.base import Lost
from fedmef.engines.flower.nodes import Nodes
from fedmef.engines.flower.translation import content_of, lost_of, report_of, train_message
from fedmef.engines.reports import DeviceReport


class FlowerEngine:
    """Devices are nodes of a Grid. A node that does not answer in time costs its update, not the run.

    Args:
        nodes: the nodes that are the devices.
        deadline: seconds in which a device must answer; None waits for as long as Flower keeps a message.
        patience: seconds to wait for all devices to connect, before the first round.
    """

    def __init__(self, nodes: Nodes, *, deadline: float | None = None, patience: float = 300.0) -> None:
        self.reports: list[DeviceReport] = []
        self._nodes = nodes
        self._deadline = deadline
        nodes.wait(patience)

    def train(self, messages: Mapping[int, bytes]) -> dict[int, bytes | Lost]:
        """What each device answers to its message."""
        nodes = self._nodes.of(messages)
        sent = {
            device: train_message(messages[device], nodes[device], self._deadline)
            for device in messages
            if device in nodes
        }
        replies = self._nodes.exchange(sent.values(), self._deadline)
        answers: dict[int, bytes | Lost] = {}
        self.reports = []
        for device, content in messages.items():
            reply = replies.get(sent[device].metadata.message_id) if device in sent else None
            if reply is not None and reply.has_content():
                answers[device] = content_of(reply)
                self.reports.append(report_of(reply, device, len(content)))
            elif reply is not None:
                answers[device] = lost_of(reply)
            elif device in sent:
                answers[device] = Lost.too_late(self._deadline) if self._deadline else Lost("no answer")
            else:
                answers[device] = Lost("its node is not connected")
        return answers

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None
