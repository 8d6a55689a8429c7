"""A job: everything that a device must know for a round, besides its own data and limits."""

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from fedmef.errors import MessageError, NetworkError
from fedmef.sparsity.reading import read_fields
from fedmef.wire.container import MESSAGE_VERSION, read_header
from fedmef.wire.floats import WireType
from fedmef.wire.schemes import Rule

MOST_EPOCHS = 100_000
# Later than the others: left out unless used, so messages stay what they were, and older devices read them.
LATER_FIELDS = frozenset({"momentum", "weight_decay", "proximal", "loss"})
CROSS_ENTROPY = "cross_entropy"
LeftOver = Literal["even", "drop", "keep"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the server asks of the devices in a round.

    Attributes:
        method: whose device half does it.
        round: counted from 0.
        attempt: how often the round was tried before, with other devices.
        seed: everything random on a device derives from it, the round and the device's number.
        local_epochs, batch_size, augment: how to train.
        left_over: what becomes of samples beyond an epoch's full batches.
        learning_rate: `η_r`.
        initial_rate: `η_0`.
        adjustment_rate: `ζ_r`, or 0 when masks stay as they are.
        extrusion: FedMef's `λ`.
        momentum, weight_decay: of the local steps.
        proximal: FedProx's `μ`: weights are drawn to what was sent.
        loss: what the steps minimise: cross_entropy, or module:function, which the device must have itself.
        wire_scheme, wire_dtype: how the answer is coded.
        remember_masks: the device keeps the masks, so that later messages need not repeat them.
    """

    method: str
    round: int
    seed: int
    learning_rate: float
    initial_rate: float
    local_epochs: int = 1
    batch_size: int = 32
    left_over: LeftOver = "even"
    augment: bool = False
    adjustment_rate: float = 0.0
    attempt: int = 0
    extrusion: float = 0.0
    wire_scheme: Rule = "auto"
    wire_dtype: WireType = "fp32"
    remember_masks: bool = True
    momentum: float = 0.0
    weight_decay: float = 0.0
    proximal: float = 0.0
    loss: str = CROSS_ENTROPY

    def __post_init__(self) -> None:
        if (
            self.initial_rate <= 0
            or min(self.learning_rate, self.adjustment_rate, self.extrusion) < 0
            or min(self.weight_decay, self.proximal) < 0
            or not 0 <= self.momentum < 1
            or self.batch_size < 1
            or not 1 <= self.local_epochs <= MOST_EPOCHS
        ):
            raise MessageError(f"a job that makes no sense: {self}")

    @property
    def adjusts(self) -> bool:
        """Whether the masks change after this round."""
        return self.adjustment_rate > 0


def job_table(job: Job) -> dict[str, Any]:
    """A job for a header; `job_of` reads it."""
    defaults = {field.name: field.default for field in fields(job) if field.name in LATER_FIELDS}
    table = asdict(job)
    return {name: value for name, value in table.items() if name not in defaults or value != defaults[name]}


def read_job(message: bytes) -> Job:
    """The job of a broadcast, without reading the rest of it."""
    return job_of(read_header(message, MESSAGE_VERSION).get("job"))


def job_of(table: Any) -> Job:
    """A job from a header, or a `MessageError`."""
    try:
        return read_fields(Job, table)
    except NetworkError as error:
        raise MessageError(f"a broadcast whose job cannot be read: {error}") from None
