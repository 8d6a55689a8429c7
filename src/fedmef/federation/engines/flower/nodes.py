"""Which node of a Grid is which device, and sending to nodes."""

import time
from collections.abc import Callable, Iterable
from logging import WARNING

from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore import log

from fedmef.device.lost import LONGEST_REASON
from fedmef.errors import FedmefError
from fedmef.federation.engines.flower.owners import Owners
from fedmef.federation.engines.flower.translation import MalformedError, device_of, which_device_message

QUERY_SECONDS = 60.0


class Nodes:
    """The nodes behind a Grid. Flower numbers them at random: each is asked once which device it is.

    Args:
        grid: what Flower gives to a ServerApp.
        devices: how many there are, numbered from 0.
        poll: seconds between two looks for answers.
        check_running: raises when no answer can come any more.
        owners: which key is which device. None where nodes have no keys that last, as in a simulation: then
            a device may come back as any node.
    """

    def __init__(
        self,
        grid: Grid,
        devices: int,
        *,
        poll: float = 1.0,
        check_running: Callable[[], None] = lambda: None,
        owners: Owners | None = None,
    ) -> None:
        self._grid = grid
        self._devices = range(devices)
        self._poll = poll
        self._check_running = check_running
        self._owners = owners
        self._online: dict[int, NodeInfo] = {}
        self._known: dict[int, int] = {}  # the node of each device
        self._others: set[int] = set()  # nodes that are no device of ours, or not the one that they say
        self._asked: set[int] = set()  # nodes that were asked at least once
        self._questions: dict[str, int] = {}  # what has no answer yet, and the node that it went to
        self._refusals: dict[int, str] = {}  # why a node cannot say which device it is
        self._doubles: set[int] = set()  # nodes that say that they are a device that there is already

    def wait(self, patience: float) -> None:
        """Until every device is connected, or `patience` seconds are over and at least one is."""
        end = time.monotonic() + patience
        while len(self._find(self._devices, 0)) < len(self._devices):
            if time.monotonic() >= end:
                break
            self._check_running()
            time.sleep(self._poll)
        if not self._known:
            reasons = "; ".join(sorted(set(self._refusals.values())))
            raise FedmefError(
                f"no device is connected after {patience:g} s: "
                + (reasons or "start SuperNodes, each with --node-config 'partition-id=N', N from 0 on")
            )

    def of(self, devices: Iterable[int]) -> dict[int, int]:
        """The nodes of those of these devices that are connected."""
        return self._find(devices, QUERY_SECONDS)

    def send_and_wait(self, messages: Iterable[Message], seconds: float | None) -> dict[str, Message]:
        """Replies by the message that they answer; in time, or not at all.

        Flower's `send_and_receive` looks for answers only every three seconds, and cannot be told to stop.
        """
        return self._receive(self._grid.push_messages(list(messages)), seconds)

    def _receive(self, sent: Iterable[str], seconds: float | None) -> dict[str, Message]:
        waiting = set(filter(None, sent))  # Flower gives None for a message that it could not send
        replies: dict[str, Message] = {}
        end = None if seconds is None else time.monotonic() + seconds
        while waiting:
            for reply in self._grid.pull_messages(waiting):
                replies[reply.metadata.reply_to_message_id] = reply
            waiting -= replies.keys()
            if not waiting or (end is not None and time.monotonic() >= end):
                break
            self._check_running()
            time.sleep(self._poll)
        return replies

    def _find(self, devices: Iterable[int], seconds: float) -> dict[int, int]:
        self._online = {node.node_id: node for node in self._grid.get_nodes()}
        online = self._online.keys()
        self._known = {device: node for device, node in self._known.items() if node in online}
        self._asked &= online
        self._questions = {question: node for question, node in self._questions.items() if node in online}
        wanted = set(devices)
        unknown = online - set(self._known.values()) - self._others
        if not wanted <= self._known.keys():
            self._ask(unknown, seconds)
        elif self._owners is not None:  # one of them may be registered as a device that another says it is
            self._ask(unknown, 0)
        return {device: node for device, node in self._known.items() if device in wanted}

    def _ask(self, nodes: set[int], seconds: float) -> None:
        """Wait so long for nodes that were never asked; one that kept silent may answer whenever it likes."""
        new = nodes - self._asked
        self._asked |= new
        to_ask = sorted(nodes - set(self._questions.values()))
        messages = {node: which_device_message(node, QUERY_SECONDS) for node in to_ask}
        self._grid.push_messages(list(messages.values()))
        self._questions |= {message.metadata.message_id: node for node, message in messages.items()}
        replies = self._receive(self._questions, seconds if new else 0)
        answers = [(self._questions.pop(question), reply) for question, reply in replies.items()]
        # Of two that say the same at the same time, the one that was registered first is believed.
        for node, reply in sorted(answers, key=lambda one: (self._online[one[0]].registered_at, one[0])):
            self._note(node, reply)

    def _note(self, node: int, reply: Message) -> None:
        if reply.has_error():
            self._refusals[node] = str(reply.error.reason)[:LONGEST_REASON]
            return
        try:
            device = device_of(reply)
        except MalformedError as error:
            self._refusals[node] = str(error)
            return
        if device not in self._devices:
            self._others.add(node)
        elif self._owners is not None:
            if reason := self._owners.claim(self._online[node], device, self._holder(device)):
                self._others.add(node)
                log(WARNING, "%s", reason)
            else:
                self._known[device] = node
        elif self._known.setdefault(device, node) != node and node not in self._doubles:  # the first is kept
            self._doubles.add(node)
            log(WARNING, "partition-id = %d: two nodes say so; the later one is left out", device)

    def _holder(self, device: int) -> NodeInfo | None:
        return self._online[self._known[device]] if device in self._known else None
