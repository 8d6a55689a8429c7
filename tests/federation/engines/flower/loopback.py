"""A Grid without a network: nodes are ClientApps that answer at once, in this process."""

from collections.abc import Callable, Iterable

from flwr.app import Context, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from fedmef.federation.engines.flower.translation import (
    content_of,
    device_number,
    device_reply,
    train_reply,
)


class Loopback(Grid):
    """`nodes` gives the partition-id of each node, or None for a node that is dead.

    `names` are those that nodes were registered with; a node's key is its number, unless `keys` has another.
    """

    def __init__(
        self,
        nodes: dict[int, int | None],
        app: Callable[[Message, Context], Message],
        run_config: UserConfig | None = None,
    ) -> None:
        self.nodes = nodes
        self.app = app
        self.run_config = run_config or {}
        self.names: dict[int, str] = {}
        self.keys: dict[int, bytes] = {}
        self.received: list[tuple[int, str]] = []
        self._replies: dict[str, Message] = {}

    def set_run(self, run: Run) -> None: ...

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [
            NodeInfo(
                node_id=node,
                public_key=self.keys.get(node, str(node).encode()),
                name=self.names.get(node, ""),
            )
            for node in self.nodes
        ]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for message in messages:
            node, kind = message.metadata.dst_node_id, message.metadata.message_type
            name = f"{len(self.received)}"
            self.received.append((node, kind))
            message.metadata.__dict__["_message_id"] = name
            names.append(name)
            if (device := self.nodes[node]) is not None:
                self._replies[name] = self.app(message, context(device, self.run_config))
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies[name] for name in message_ids if name in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))


def answering(train: Callable[[int, bytes], bytes]) -> ClientApp:
    """A ClientApp whose devices answer what `train` returns."""
    app = ClientApp()
    app.query("device")(device_reply)

    @app.train("round")
    def reply(message: Message, context: Context) -> Message:
        device = device_number(context)
        return train_reply(message, device, lambda: train(device, content_of(message)))

    return app


def context(device: int, run_config: UserConfig | None = None, node: dict[str, str] | None = None) -> Context:
    return Context(1, 2, {"partition-id": device, **(node or {})}, RecordDict(), run_config or {})
