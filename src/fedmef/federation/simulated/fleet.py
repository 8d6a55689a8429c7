"""The devices that one process stands for: each has its part of the data, and they share a backend.

Injected faults and attackers are added here, around a device: the device itself has none.
"""

from dataclasses import dataclass, field

from fedmef.data import Dataset, dirichlet_partition, iid_partition, natural_partition
from fedmef.device.backend import Backend, backend_for, import_backend
from fedmef.device.device import Device
from fedmef.device.training import Samples
from fedmef.errors import UserError
from fedmef.experiment.faults import LIES, Faults
from fedmef.experiment.settings import Experiment
from fedmef.federation.simulated.attack import attackers, scale_update
from fedmef.federation.simulated.faults import corrupt, raise_fault
from fedmef.federation.simulated.lies import told
from fedmef.methods import find_method
from fedmef.sparsity.arrays import Integers
from fedmef.sparsity.network import Network
from fedmef.wire.job import read_job
from fedmef.wire.store import Store


@dataclass(frozen=True, eq=False)
class Fleet:
    """Everything that is needed to train any device of an experiment.

    Attributes:
        shares: training samples of each device; none when devices have their data elsewhere.
        store: what its devices hold between rounds: equal masks need one copy.
    """

    experiment: Experiment
    dataset: Dataset
    shares: list[Integers]
    store: Store
    _backends: dict[str, Backend] = field(default_factory=dict)

    @classmethod
    def build(cls, experiment: Experiment, dataset: Dataset, store: Store) -> "Fleet":
        """The same fleet in every process."""
        return cls(experiment, dataset, partition(experiment, dataset), store)

    def warm_up(self) -> None:
        """Load what a first step loads, which may take seconds: no device's deadline shall pay for it."""
        import_backend(self.experiment.backend)

    def train(self, device: int, message: bytes) -> bytes:
        """One device's round: bytes in, bytes out, with the faults and attackers of the experiment."""
        raise_fault(self.fault(device, message))
        return self.tampered(device, message, self.train_honestly(device, message))

    def fault(self, device: int, message: bytes) -> str | None:
        """How a device fails in the round of a message, if it does."""
        if not self.experiment.faults:
            return None
        job = read_job(message)
        return Faults.parse(self.experiment.faults).of(job.seed, job.round, job.attempt, device)

    def train_honestly(self, device: int, message: bytes) -> bytes:
        """The same without faults and attackers."""
        return self._device(device).train(message)

    def tampered(self, device: int, message: bytes, answer: bytes) -> bytes:
        """What an attacker, a liar or a corrupting device makes of its answer; others leave it as it is."""
        experiment = self.experiment
        if device in attackers(experiment.attackers, experiment.devices, experiment.seed):
            answer = scale_update(message, answer, experiment.attack_scale, self.store)
        fault = self.fault(device, message)
        if fault in LIES:
            return told(fault, device, message, answer, self.store)
        if fault != "corrupt":
            return answer
        job = read_job(message)
        return corrupt(answer, job.seed, job.round, device)

    def _device(self, number: int) -> Device:
        train = self.dataset.train
        samples = Samples(train.images, train.labels, self.shares[number])
        return Device(
            number,
            samples,
            self._open_backend,
            self.store,
            find_method,
            most_weights=None,
            most_values=None,
            alone=False,
        )

    def _open_backend(self, network: Network) -> Backend:
        if network.digest not in self._backends:
            self._backends.clear()
            self._backends[network.digest] = backend_for(self.experiment, network)
        return self._backends[network.digest]


def partition(experiment: Experiment, dataset: Dataset) -> list[Integers]:
    """Which training samples each device has."""
    labels = dataset.train.labels
    if experiment.partition == "natural":
        return _shares_of_users(experiment, dataset)
    if experiment.partition == "iid":
        return iid_partition(labels, experiment.devices, experiment.seed)
    return dirichlet_partition(labels, experiment.devices, experiment.alpha, experiment.seed)


def following_users(experiment: Experiment, dataset: Dataset) -> Experiment:
    """The experiment with a device for each of the data's users, if it says so and gives no other number."""
    if not experiment.devices_follow_users:
        return experiment
    users, asked = len(_shares_of_users(experiment, dataset)), experiment.devices_per_round
    if asked > users and "devices_per_round" in experiment.model_fields_set:
        raise UserError(
            f"devices_per_round = {asked}: dataset '{dataset.name}' has only {users} users; lower it"
        )
    if experiment.min_devices is not None and experiment.min_devices > users:
        raise UserError(
            f"min_devices = {experiment.min_devices}: dataset '{dataset.name}' has only {users} users; "
            "lower it"
        )
    return experiment.model_copy(update={"devices": users, "devices_per_round": min(asked, users)})


def _shares_of_users(experiment: Experiment, dataset: Dataset) -> list[Integers]:
    if dataset.users is None:
        raise UserError(
            f"partition = 'natural': dataset '{dataset.name}' does not say whose its images are; give "
            "Dataset(..., users=...), or train_users.npy in its folder, or choose dirichlet or iid"
        )
    shares = natural_partition(dataset.users)
    if len(shares) != experiment.devices and not experiment.devices_follow_users:
        raise UserError(
            f"devices = {experiment.devices}: dataset '{dataset.name}' has {len(shares)} users, and with "
            "partition = 'natural' each is a device; leave devices out"
        )
    return shares
