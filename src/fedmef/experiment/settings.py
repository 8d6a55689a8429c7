"""An experiment: every setting, typed and validated."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fedmef.errors import UserError
from fedmef.experiment.faults import Faults
from fedmef.experiment.mistakes import explained, unknown_setting
from fedmef.wire.floats import WireType
from fedmef.wire.job import CROSS_ENTROPY, MOST_EPOCHS, Job, LeftOver
from fedmef.wire.schemes import Rule

Aggregation = Literal["mean", "median", "trimmed_mean"]
MOST_METRICS = 20
# name=module:function
METRIC = re.compile(r"[A-Za-z_][\w.-]{0,39}=[^\s,=:]{1,200}:[^\s,=:]{1,200}", re.ASCII)
LARGEST_SYNTHETIC = 2**30  # bytes of made-up images
LONGEST_NAME = 200


class Experiment(BaseModel):
    """Everything that decides a run. The same experiment gives the same bits, on one machine."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    method: str = Field(
        max_length=LONGEST_NAME,
        default="fedmef",
        description="fedmef, fedtiny, feddst, fl_pqsu, fedavg, ... (README), or module:Class.",
    )
    dataset: str = Field(
        max_length=LONGEST_NAME,
        default="digits",
        description="digits, cifar10, cifar100, cinic10, fashion_mnist, femnist, tiny_imagenet, synthetic; "
        "your own: ./folder, module:function.",
    )
    model: str = Field(
        max_length=LONGEST_NAME,
        default="small_cnn",
        description="small_cnn, resnet18, resnet34, resnet50, mobilenet_v2, or module:function of your own.",
    )
    width: int | None = Field(
        default=None, ge=1, description="Channels of the network's first stage (default: as published)."
    )
    stem: Literal["cifar", "strided", "imagenet"] = Field(
        default="cifar",
        description="First layers for small or large images; strided: small at half size, 3x faster.",
    )
    seed: int = Field(default=0, ge=0, le=2**53, description="Everything random derives from it.")

    devices: int = Field(default=20, ge=1, description="Devices that share the training data.")
    devices_per_round: int = Field(
        default=10, ge=1, description="Devices that train in each round, or all if there are fewer."
    )
    rounds: int = Field(default=40, ge=1, description="Rounds R.")
    partition: Literal["dirichlet", "iid", "natural"] = Field(
        default="dirichlet",
        description="How the training data are split over devices; natural: each of the data's users is one.",
    )
    alpha: float = Field(
        default=0.5, gt=0, description="Dirichlet's alpha: the smaller, the more devices differ."
    )

    local_epochs: int = Field(
        default=5, ge=1, le=MOST_EPOCHS, description="Epochs E on each device in each round."
    )
    batch_size: int = Field(default=32, ge=1, le=2**20, description="Samples in a local step.")
    learning_rate: float | None = Field(
        default=None, gt=0, le=1e30, description="Initial learning rate of plain SGD (default: the method's)."
    )
    learning_rate_decay: float = Field(
        default=0.95, gt=0, le=1, description="Factor of the learning rate's decay."
    )
    decay_every: int = Field(default=10, ge=1, description="Rounds between two decays.")
    rate_schedule: Literal["decay", "cosine"] = Field(
        default="decay", description="The learning rate decays by steps, or to 0 along a cosine."
    )
    warmup_rounds: int = Field(
        default=0, ge=0, description="First rounds, in which the learning rate rises to its schedule."
    )
    momentum: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Momentum of the local steps; a device keeps none between rounds.",
    )
    weight_decay: float = Field(
        default=0.0, ge=0, le=1e30, description="L2 penalty of the local steps, on all that is trained."
    )
    proximal: float = Field(
        default=0.0, ge=0, le=1e30, description="FedProx's mu: local weights are drawn to the global ones."
    )
    loss: str = Field(
        max_length=LONGEST_NAME,
        default=CROSS_ENTROPY,
        description="What devices minimise; your own, on torch: module:function of (logits, labels).",
    )
    left_over: LeftOver = Field(
        default="even",
        description="Samples beyond full batches: spread evenly over the steps, dropped, or kept as a batch.",
    )
    augment: bool = Field(default=False, description="Random crops and flips of training images.")

    sparsity: float = Field(
        default=0.9, ge=0, lt=1, description="Share of weights pruned in sparse layers (s_m)."
    )
    distribution: Literal["uniform", "erk"] = Field(default="uniform", description="Density per layer.")
    activation_sparsity: float = Field(
        default=0.9, ge=0, lt=1, description="Share of activations forgotten before the backward pass (s_a)."
    )
    cache_dtype: Literal["fp32", "fp16", "bf16"] = Field(
        default="fp32", description="How kept activations are stored."
    )
    gamma: float = Field(default=1.0, gt=0, description="NSConv: the norm of a filter.")
    scaling: Literal["filter", "paper"] = Field(
        default="filter",
        description="NSConv: divide a filter by its own norm, or as Eq. 7 by σ and sqrt(c_in).",
    )
    affine: bool = Field(default=False, description="NSConv: learn a gain and a bias per filter.")

    skip: tuple[str, ...] = Field(
        default=(),
        description="Modules that stay exactly as they are, such as head,layer4.* (default: none).",
    )
    keep_dense: tuple[str, ...] | None = Field(
        default=None,
        description="Layers that keep all weights (default: first, depthwise and last ones).",
    )
    first_layers: tuple[str, ...] | None = Field(
        default=None, description="Layers that read the images (default: the first that runs)."
    )
    last_layers: tuple[str, ...] | None = Field(
        default=None, description="Classifiers (default: layers that end the network)."
    )

    adjust_every: int = Field(default=5, ge=1, description="Rounds between two adjustments of the masks.")
    adjust_until: int | None = Field(
        default=None,
        ge=0,
        description="Last round that may adjust (default: 60 % of the rounds, as in the paper).",
    )
    extrusion: float = Field(
        default=0.1,
        ge=0,
        description="FedMef's lambda, the weight of the penalty on what will be pruned; 0 is no penalty.",
    )
    grow_init: Literal["zero", "step"] = Field(
        default="zero",
        description="First value of a grown weight: 0, or one step down its averaged gradient.",
    )

    deadline: float | None = Field(
        default=None, gt=0, description="Seconds that a device may take for a round (default: no limit)."
    )
    min_devices: int | None = Field(
        default=None,
        ge=1,
        description="How many usable updates a round needs (default: a third of devices_per_round).",
    )
    round_attempts: int = Field(
        default=5, ge=1, description="How often a round is tried, with other devices, before the run stops."
    )
    max_update_norm: float | None = Field(
        default=None, gt=0, description="An update that changes more than this is rejected (default: none)."
    )
    max_norm_ratio: float = Field(
        default=20.0,
        ge=0,
        description="An update of more than this many times the round's median norm is rejected; 0: off.",
    )
    max_samples: int | None = Field(
        default=None,
        ge=1,
        description="On a fleet: who claims more samples counts for the median (default: no limit).",
    )
    max_samples_ratio: float = Field(
        default=10.0,
        ge=0,
        description="On a fleet: a claim of more than this many times the median is not believed; 0: off.",
    )
    aggregation: Aggregation = Field(
        default="mean",
        description="How updates are combined; median and trimmed_mean tolerate malicious devices.",
    )
    trim: float = Field(
        default=0.2, ge=0, lt=0.5, description="trimmed_mean: share of values left out at either end."
    )
    server_optimizer: Literal["none", "momentum", "adam"] = Field(
        default="none",
        description="What the server makes of the average: takes it, or steps towards it (FedAvgM, FedAdam).",
    )
    server_rate: float | None = Field(
        default=None,
        gt=0,
        le=1e30,
        description="The server's learning rate (default: 1 with momentum, 0.01 with adam).",
    )
    server_momentum: float = Field(
        default=0.9, ge=0, lt=1, description="The server's momentum, which is adam's beta 1."
    )
    clip_norm: float | None = Field(
        default=None, gt=0, description="Updates are scaled down to this norm (default: not at all)."
    )
    noise_multiplier: float = Field(
        default=0.0, ge=0, description="Client-level privacy: noise as a multiple of clip_norm."
    )
    noise_source: Literal["system", "seed"] = Field(
        default="system",
        description="Client-level privacy: noise that nobody can repeat, or, for tests, the seed's.",
    )
    delta: float = Field(default=1e-5, gt=0, lt=1, description="Client-level privacy: its delta.")
    faults: str = Field(
        default="",
        description="Injected faults, such as drop=0.3,slow=0.1,corrupt=0.05,kill=0.02 (default: none).",
    )
    attackers: float = Field(
        default=0.0, ge=0, lt=1, description="Injected: share of devices that scale their update."
    )
    attack_scale: float = Field(default=-10.0, description="Injected: the factor of the attackers.")
    wire_scheme: Rule = Field(
        default="auto", description="How masks travel: the smallest code, the paper's rule, or always one."
    )
    wire_dtype: WireType = Field(default="fp32", description="How weights travel, in both directions.")
    remember_masks: bool = Field(
        default=True, description="Devices keep masks and are sent only what has changed."
    )

    evaluate_every: int = Field(
        default=1, ge=1, description="Rounds between two evaluations on the test data."
    )
    metrics: tuple[str, ...] = Field(
        default=(),
        description="A metric of your own on the test data, name=module:function of (logits, labels).",
    )
    keep_best: bool = Field(
        default=False, description="Keep the model of the highest test accuracy too (best.safetensors)."
    )
    engine: Literal["auto", "inline", "processes", "flower"] = Field(
        default="auto",
        description="auto: processes on several cores or with device_memory, otherwise inline; "
        "flower: Flower's simulation on Ray.",
    )
    workers: int | None = Field(
        default=None, ge=1, description="Worker processes (default: one for each core)."
    )
    device_memory: ByteSize | None = Field(
        default=None,
        gt=0,
        description="Most memory of a device's whole process, libraries included, such as 64MB.",
    )
    backend: Literal["auto", "torch", "native"] = Field(
        default="auto",
        description="What executes the network: native for sparse ones on a CPU, if it is there; or torch.",
    )
    accelerator: str = Field(
        default="cpu",
        max_length=LONGEST_NAME,
        description="Where PyTorch's tensors live: cpu, cuda, cuda:1 and so on.",
    )
    data_dir: Path | None = Field(
        default=None, description="Folder of the data sets (default: $FEDMEF_DATA or ~/.cache/fedmef)."
    )

    synthetic_size: int = Field(default=32, ge=4, description="synthetic: height and width of the images.")
    synthetic_train: int = Field(default=2000, ge=1, description="synthetic: training images.")
    synthetic_test: int = Field(default=500, ge=1, description="synthetic: test images.")

    @field_validator("*", mode="before")
    @classmethod
    def _truth_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and not isinstance(cls.model_fields[info.field_name or ""].default, bool):
            raise ValueError("must not be true or false")
        return value

    @field_validator("data_dir")
    @classmethod
    def _wherever_it_is_resumed(cls, folder: Path | None) -> Path | None:
        try:
            return None if folder is None else folder.expanduser().absolute()
        except RuntimeError:  # ~ of nobody
            raise ValueError("there is no such user; write the folder's path") from None

    @field_validator("skip", "keep_dense", "first_layers", "last_layers", mode="before")
    @classmethod
    def _names_may_be_one_text(cls, names: Any) -> Any:
        if not isinstance(names, str):
            return names
        return tuple(name.strip() for name in names.split(",") if name.strip())

    @field_validator("metrics", mode="before")
    @classmethod
    def _metrics_may_be_a_table(cls, metrics: Any) -> Any:
        if isinstance(metrics, Mapping):
            return tuple(f"{name}={path}" for name, path in metrics.items())
        return metrics.split(",") if isinstance(metrics, str) else metrics

    @field_validator("metrics")
    @classmethod
    def _metrics_have_names(cls, metrics: tuple[str, ...]) -> tuple[str, ...]:
        for metric in metrics:
            if not METRIC.fullmatch(metric):
                raise ValueError(
                    f"must be name=module:function, such as top5=mine:top5, not '{metric[:100]}'"
                )
        if len({metric.partition("=")[0] for metric in metrics}) < len(metrics):
            raise ValueError("a name is there twice; give each metric its own")
        if len(metrics) > MOST_METRICS:
            raise ValueError(f"at most {MOST_METRICS}")
        return metrics

    @field_validator("noise_multiplier")
    @classmethod
    def _noise_is_none_or_some(cls, multiplier: float) -> float:
        if 0 < multiplier < 0.01:
            raise ValueError("must be 0, or at least 0.01: so little noise protects nobody")
        return multiplier

    @field_validator("max_norm_ratio", "max_samples_ratio")
    @classmethod
    def _the_median_itself_is_allowed(cls, ratio: float) -> float:
        if 0 < ratio < 1:
            raise ValueError("must be 0, or at least 1: less would leave out the median itself")
        return ratio

    @field_validator("faults")
    @classmethod
    def _faults_can_be_read(cls, faults: str) -> str:
        Faults.parse(faults)
        return faults

    @model_validator(mode="before")
    @classmethod
    def _fewer_devices_all_train(cls, values: Any) -> Any:
        """By default: who asks for 5 devices need not say that 5 train in a round."""
        fields, given = cls.model_fields, isinstance(values, dict) and "devices_per_round" not in values
        try:
            devices = int(values["devices"]) if given else 0
        except (KeyError, TypeError, ValueError, OverflowError):
            return values  # there are enough by default, or it is no number
        if 0 < devices < fields["devices_per_round"].default:
            return {**values, "devices_per_round": devices}
        return values

    @model_validator(mode="after")
    def _fields_fit_together(self) -> "Experiment":
        if self.devices_per_round > self.devices and not self.devices_follow_users:
            raise ValueError(
                f"devices_per_round = {self.devices_per_round}: there are only {self.devices} devices; "
                "lower it or raise devices"
            )
        if self.min_devices is not None and self.min_devices > self.devices_per_round:
            raise ValueError(
                f"min_devices = {self.min_devices}: only {self.devices_per_round} devices train in a round; "
                "lower it or raise devices_per_round"
            )
        images = (self.synthetic_train + self.synthetic_test) * 3 * self.synthetic_size**2
        if images > LARGEST_SYNTHETIC:
            raise ValueError(
                f"synthetic_size = {self.synthetic_size}, synthetic_train = {self.synthetic_train}, "
                f"synthetic_test = {self.synthetic_test}: {images:,} bytes of images, of at most "
                f"{LARGEST_SYNTHETIC:,}; lower one of them"
            )
        return self

    @property
    def devices_follow_users(self) -> bool:
        """Whether the data say how many devices there are: nobody else did."""
        return self.partition == "natural" and "devices" not in self.model_fields_set

    def settings(self) -> dict[str, Any]:
        """Every setting, to make a similar experiment of; devices that follow the users still do."""
        if not self.devices_follow_users:
            return self.model_dump()
        return self.model_dump(exclude={"devices", "devices_per_round"} - self.model_fields_set)

    @property
    def fewest_devices(self) -> int:
        """How many usable updates a round needs, as given or by default; a private one takes any number."""
        if self.noise_multiplier:
            return 0
        return -(-self.devices_per_round // 3) if self.min_devices is None else self.min_devices

    @property
    def last_adjustment(self) -> int:
        """`R_stop`, as given or by default."""
        return round(0.6 * self.rounds) if self.adjust_until is None else self.adjust_until

    def job(self, round_number: int, own_rate: float) -> Job:
        """What devices are told in a round that adjusts nothing; `own_rate` is the method's `η_0`."""
        initial = own_rate if self.learning_rate is None else self.learning_rate
        return Job(
            method=self.method,
            round=round_number,
            seed=self.seed,
            learning_rate=initial * self._rate_share(round_number),
            initial_rate=initial,
            local_epochs=self.local_epochs,
            batch_size=self.batch_size,
            left_over=self.left_over,
            augment=self.augment,
            extrusion=self.extrusion,
            wire_scheme=self.wire_scheme,
            wire_dtype=self.wire_dtype,
            remember_masks=self.remember_masks,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            proximal=self.proximal,
            loss=self.loss,
        )

    def _rate_share(self, round_number: int) -> float:
        """`η_r / η_0`."""
        if self.rate_schedule == "cosine":
            share = 0.5 + 0.5 * math.cos(math.pi * round_number / self.rounds)
        else:
            share = self.learning_rate_decay ** (round_number // self.decay_every)
        return share * min(1.0, (round_number + 1) / (self.warmup_rounds + 1))


# What a resumed or repeated run may change: where and how it runs, not what it computes.
MACHINE_FIELDS = frozenset({"engine", "workers", "accelerator", "device_memory", "data_dir", "deadline"})


def make_experiment(values: Mapping[str, Any]) -> Experiment:
    """An experiment from loose values; a `UserError` names each wrong field, its value and the remedy."""
    for name in values:
        if name not in Experiment.model_fields:
            raise unknown_setting(name, Experiment.model_fields)
    try:
        return Experiment(**values)
    except ValidationError as error:
        raise UserError(explained(error, Experiment.model_fields)) from None
