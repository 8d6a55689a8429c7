"""FedMef, and every other method, as a Flower strategy: for a ServerApp that is written in Flower's own way.

    @app.main()
    def main(grid, context):
        strategy = FedMefStrategy(experiment, network)
        result = strategy.start(grid, strategy.arrays(), num_rounds=experiment.rounds)

The ClientApp is `fedmef.federation.engines.flower.client_app`. `server_app` does more: a run's directory,
resuming, evaluation, and rounds that too few devices answered are repeated.
"""

from collections.abc import Iterable
from logging import INFO, WARNING

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.supercore import log
from torch import nn

from fedmef.experiment.settings import Experiment
from fedmef.federation.api import one_thread
from fedmef.federation.collection import choose_devices
from fedmef.federation.engines.base import Lost
from fedmef.federation.engines.flower.nodes import Nodes
from fedmef.federation.engines.flower.translation import answer_of, train_message
from fedmef.federation.preparation import check_aggregation
from fedmef.federation.server import Server, packed_masks
from fedmef.federation.update_checks import UpdateChecks
from fedmef.methods import Plan, build_method, prepare


class FedMefStrategy(Strategy):
    """Whatever method the experiment names. The global model lives in `server`, sparse, between rounds.

    Args:
        experiment: method, devices, rounds and the rest; devices and ClientApps must have the same. A round
            with fewer than `min_devices` usable updates changes nothing, and is not repeated, whatever
            `round_attempts` says: Flower's loop goes on to the next.
        network: an ordinary PyTorch network; the method makes it sparse.
        patience: seconds to wait for all devices to connect, before the first round.
    """

    def __init__(self, experiment: Experiment, network: nn.Module, *, patience: float = 300.0) -> None:
        self.experiment = experiment
        self.patience = patience
        method = build_method(experiment)
        check_aggregation(method)
        checks = UpdateChecks(None, experiment.max_update_norm)
        self.server = Server(method, prepare(method, network), checks)
        self._plan: Plan | None = None
        self._nodes: Nodes | None = None
        self._asked: dict[int, int] = {}  # the device that each node of this round is

    def arrays(self) -> ArrayRecord:
        """The global model as it is, sparse, for `start` and for evaluations."""
        return ArrayRecord(self.server.model.state_dict())

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages to this round's devices. Flower counts rounds from 1."""
        self.server.method.load(self.server.model, arrays.to_torch_state_dict())
        self.server.ledger.advance(packed_masks(self.server.model))  # `start` may begin with any
        if self._nodes is None:
            self._nodes = Nodes(grid, self.experiment.devices)
            self._nodes.wait(self.patience)
        self._plan = self.server.method.plan(server_round - 1)
        devices = choose_devices(self.experiment, server_round - 1)
        nodes = self._nodes.of(devices)
        messages = self.server.broadcast(self._plan, [device for device in devices if device in nodes])
        for device in messages:
            self.server.missed(device)  # until it answers: then it has the masks of this message
        self._asked = {nodes[device]: device for device in messages}
        deadline = self.experiment.deadline
        return [train_message(content, nodes[device], deadline) for device, content in messages.items()]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Absorb the answers that can be used, let the method adjust the masks."""
        assert self._plan is not None, "configure_train comes first"
        answers: dict[int, bytes] = {}
        for reply in replies:
            if (device := self._asked.get(reply.metadata.src_node_id)) is None:
                continue
            answer, _ = answer_of(reply, device, 0, self.experiment.deadline)
            if isinstance(answer, Lost):
                log(WARNING, "device %d: %s", device, answer.reason)
            else:
                answers[device] = answer
        with one_thread():
            updates, rejections = self.server.check(answers, self._plan)
            for rejection in rejections:
                log(WARNING, "device %d: %s", rejection.device, rejection.reason)
            if len(updates) < self.experiment.fewest_devices:  # none is enough where there is noise
                log(WARNING, "%d usable updates are too few: the model stays as it is", len(updates))
                return None, None
            loss = self.server.absorb(updates, self._plan)
            self.server.adjust(self._plan)
        bytes_up = sum(map(len, answers.values()))
        return self.arrays(), MetricRecord(
            {"train-loss": loss, "answers": len(updates), "bytes-up": bytes_up}
        )

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing: devices have no test data; give `start` an `evaluate_fn`."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing, as nothing was asked."""
        return None

    def summary(self) -> None:
        """Log what will be trained."""
        for line in self.experiment.to_toml().splitlines():
            log(INFO, "\t%s", line)
