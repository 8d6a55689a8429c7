"""Which node of a Grid is which device, and sending to nodes."""

import time
from collections.abc import Callable, Iterable

from flwr.app import Message
from flwr.serverapp import Grid

from fedmef.engines.flower.translation import device_of, which_device_message
from fedmef.errors import FedmefError, UserError

QUERY_SECONDS = 60.0


class Nodes:
    """The nodes behind a Grid. Flower numbers them at random: each is asked once which device it is.

    Args:
        grid: what Flower gives to a ServerApp.
        devices: how many there are, numbered from 0.
        poll: seconds between two looks for answers.
        check_running: raises when no answer can come any more.
    """

    def __init__(
        self,
        grid: Grid,
        devices: int,
        *,
        poll: float = 1.0,
        check_running: Callable[[], None] = lambda: None,
    ) -> None:
        self._grid = grid
        self._devices = range(devices)
        self._poll = poll
        self._check_running = check_running
        self._known: dict[int, int] = {}  # the node of each device
        self._others: set[int] = set()  # nodes that are no device of ours
        self._refusals: dict[int, str] = {}  # why a node cannot say which device it is

    def wait(self, patience: float) -> None:
        """Until every device is connected, or `patience` seconds are over and at least one is."""
        end = time.monotonic() + patience
        while len(self.of(self._devices)) < len(self._devices) and time.monotonic() < end:
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
        online = set(self._grid.get_node_ids())
        self._known = {device: node for device, node in self._known.items() if node in online}
        wanted = set(devices)
        if not wanted <= self._known.keys():
            self._ask(sorted(online - set(self._known.values()) - self._others))
        return {device: node for device, node in self._known.items() if device in wanted}

    def exchange(self, messages: Iterable[Message], seconds: float | None) -> dict[str, Message]:
        """Replies by the message that they answer; in time, or not at all.

        Flower's `send_and_receive` looks for answers only every three seconds, and cannot be told to stop.
        """
        waiting = set(self._grid.push_messages(list(messages)))
        replies: dict[str, Message] = {}
        end = None if seconds is None else time.monotonic() + seconds
        while waiting:
            for reply in self._grid.pull_messages(waiting):
                replies[reply.metadata.reply_to_message_id] = reply
            waiting -= replies.keys()
            if not waiting or (end is not None and time.monotonic() > end):
                break
            self._check_running()
            time.sleep(self._poll)
        return replies

    def _ask(self, nodes: Iterable[int]) -> None:
        asked = {node: which_device_message(node, QUERY_SECONDS) for node in nodes}
        replies = self.exchange(asked.values(), QUERY_SECONDS)
        for node, message in asked.items():
            reply = replies.get(message.metadata.message_id)
            if reply is None:
                continue
            if reply.has_error():
                self._refusals[node] = str(reply.error.reason)
                continue
            device = device_of(reply)
            if device in self._known:
                raise UserError(f"partition-id = {device}: two nodes say so; give each its own number")
            if device in self._devices:
                self._known[device] = node
            else:
                self._others.add(node)
