"""The engine on Flower's Grid: the same in a simulation and on a fleet."""

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from fedmef.federation.engines.base import Lost
from fedmef.federation.engines.flower.answers import answer_of
from fedmef.federation.engines.flower.nodes import Nodes
from fedmef.federation.engines.flower.translation import train_message
from fedmef.runs.records import DeviceReport, Failed


class FlowerEngine:
    """Devices are nodes of a Grid. A node that does not answer in time costs its update, not the run.

    Args:
        nodes: the nodes that are the devices.
        deadline: seconds in which a device must answer, counted from when its message is sent; None waits for
            as long as Flower keeps a message.
        patience: seconds to wait for all devices to connect, before the first round.
    """

    def __init__(self, nodes: Nodes, *, deadline: float | None = None, patience: float = 300.0) -> None:
        self.reports: list[DeviceReport | Failed] = []
        self._nodes = nodes
        self._deadline = deadline
        nodes.wait(patience)

    def train(self, messages: Mapping[int, bytes]) -> dict[int, bytes | Lost]:
        """What each device answers to its message."""
        nodes = self._nodes.of(messages)
        patience = self._patience(len(nodes))
        sent = {
            device: train_message(messages[device], nodes[device], patience)
            for device in messages
            if device in nodes
        }
        replies = self._nodes.send_and_wait(sent.values(), patience)
        answers: dict[int, bytes | Lost] = {}
        self.reports = []
        for device, content in messages.items():
            if device not in sent:
                answers[device] = Lost("its node is not connected")
                continue
            reply = replies.get(sent[device].metadata.message_id)
            answers[device], report = answer_of(reply, device, len(content), self._deadline)
            if report is not None:
                self.reports.append(report)
        return answers

    def _patience(self, devices: int) -> float | None:
        """Seconds to wait for the answers of this many devices, which are all asked at once."""
        return self._deadline

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None
