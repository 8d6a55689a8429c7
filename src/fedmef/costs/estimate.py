"""What a device needs by the formulas of the paper's appendix. Estimates, never measurements.

The appendix has formulas for FedAvg, FL-PQSU (memory only), FedTiny, FedDST and FedMef. The others follow by
the same logic, and are ours:

- `fl_pqsu` computes `3 F_s E` (a comment in the paper's source) and exchanges `2 O_s`.
- `fedavg_sap` is FedAvg with FedMef's activations and its overhead `F_o`, at `s_m = 0`.
- `fedmef_no_bae`, `fedmef_no_sap` (DropIT) and `fedmef_restart` need what FedMef needs: `F_o` is not given in
  parts, and BatchNorm counts nothing.
- `prunefl` adds up dense squared gradients: `M_g`, a dense tensor for every sparse layer, in place of `M_ξ`
  and `O_ξ`, and the dense gradient in every step.
- `zerofl` holds dense weights. SWAT convolves with sparse ones forwards and backwards, takes the weights'
  gradient from pruned activations, and selects among weights as it does among activations. Down goes the
  dense network, up what `ZeroFL.extra` lets pass.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from fedmef.costs.facts import LayerFacts, NetworkFacts
from fedmef.experiment.settings import Experiment
from fedmef.methods.zerofl import ZeroFL
from fedmef.sparsity import AdjustmentSchedule, Distribution, active_count, adjustment_count, layer_counts
from fedmef.wire.schemes import choose_scheme, index_bits, scheme_bits

# A bitmap at every density, as Table 1 has it; or the rule that the appendix states.
Storage = Literal["bitmap", "paper"]

VALUE_BITS = 32


@dataclass(frozen=True)
class Setting:
    """How a device trains.

    Attributes:
        sparsity: `s_m`, of the layers that are sparse.
        batch_size: images in a step.
        samples: images that a device has.
        epochs: over them, in a round.
        adjustment_rate: `ζ`, the share of active weights that an adjustment exchanges.
        activation_sparsity: `s_a`.
        cache_bits: of a kept activation.
        distribution: of the density over layers.
    """

    sparsity: float
    batch_size: int
    samples: int
    epochs: int
    adjustment_rate: float
    activation_sparsity: float = 0.9
    cache_bits: int = 32
    distribution: Distribution = "uniform"

    @property
    def steps(self) -> int:
        """`E`, the appendix's local iterations."""
        return self.epochs * math.ceil(self.samples / self.batch_size)

    @classmethod
    def of(cls, experiment: Experiment, samples: int) -> "Setting":
        """An experiment's setting, with the largest rate that its schedule has."""
        schedule = AdjustmentSchedule(experiment.adjust_every, experiment.last_adjustment)
        return cls(
            experiment.sparsity,
            experiment.batch_size,
            samples,
            experiment.local_epochs,
            schedule.rate(experiment.adjust_every),
            experiment.activation_sparsity,
            32 if experiment.cache_dtype == "fp32" else 16,
            experiment.distribution,
        )


@dataclass(frozen=True)
class Estimate:
    """Of one device in one round: bytes, and multiply-adds.

    Attributes:
        memory: at the most, in a round that adjusts if the method has one.
        flops: likewise.
        exchange: down and up, in a round that does not adjust.
        exchange_adjusting: down and up in one that does; the same where that makes no difference.
    """

    memory: float
    flops: float
    exchange: float
    exchange_adjusting: float


@dataclass(frozen=True)
class Terms:
    """The symbols of the appendix's formulas. Storage is in bytes, FLOPs are of one local step.

    Attributes:
        dense: `M_d^p` and `O_d`, the dense parameters.
        sparse: `M_s^p` and `O_s`, the sparse ones with their positions.
        activations: `M_d^a`.
        pruned_activations: `M_s^a`.
        top: `M_ξ` and `O_ξ`, the largest gradients with their positions.
        dense_gradients: `M_g`, ours: a value for every position of the sparse layers.
        sent: ours: what ZeroFL sends up.
        f_d, f_s: the forward pass, dense and sparse.
        f_o: `4 (1 − s_m) n_θ + n_a log2 n_a`, the overhead of extrusion and activation pruning.
        f_o_dense: the same at `s_m = 0`.
        select: `n_θ log2 n_θ + n_a log2 n_a`, ours: selecting among weights and activations.
        kept: `1 − s_a`.
        steps: `E`.
    """

    dense: float
    sparse: float
    activations: float
    pruned_activations: float
    top: float
    dense_gradients: float
    sent: float
    f_d: float
    f_s: float
    f_o: float
    f_o_dense: float
    select: float
    kept: float
    steps: int


Formula = Callable[[Terms], float]


def _adjusting_flops(m: Terms, step: float) -> float:
    """`3 F (E − 1) + F + 2 F_d`: the last step's gradients are dense."""
    return 3 * step * (m.steps - 1) + step + 2 * m.f_d


_FEDMEF: tuple[Formula, Formula, Formula, Formula] = (
    lambda m: 2 * m.sparse + m.pruned_activations + m.activations + m.top,
    lambda m: _adjusting_flops(m, m.f_s + m.f_o),
    lambda m: 2 * m.sparse,
    lambda m: 2 * m.sparse + m.top,
)

# memory, FLOPs, exchange, exchange in a round that adjusts
FORMULAS: Mapping[str, tuple[Formula, Formula, Formula, Formula]] = {
    "fedavg": (
        lambda m: 2 * m.dense + 2 * m.activations,
        lambda m: 3 * m.f_d * m.steps,
        lambda m: 2 * m.dense,
        lambda m: 2 * m.dense,
    ),
    "fedavg_sap": (
        lambda m: 2 * m.dense + m.pruned_activations + m.activations,
        lambda m: 3 * (m.f_d + m.f_o_dense) * m.steps,
        lambda m: 2 * m.dense,
        lambda m: 2 * m.dense,
    ),
    "fl_pqsu": (
        lambda m: 2 * m.sparse + 2 * m.activations,
        lambda m: 3 * m.f_s * m.steps,
        lambda m: 2 * m.sparse,
        lambda m: 2 * m.sparse,
    ),
    "feddst": (
        lambda m: 2 * m.sparse + 2 * m.activations + m.top,
        lambda m: _adjusting_flops(m, m.f_s),
        lambda m: 2 * m.sparse,
        lambda m: 2 * m.sparse,
    ),
    "fedtiny": (
        lambda m: 2 * m.sparse + 2 * m.activations + m.top,
        lambda m: _adjusting_flops(m, m.f_s),
        lambda m: 2 * m.sparse,
        lambda m: 2 * m.sparse + m.top,
    ),
    "fedmef": _FEDMEF,
    "fedmef_no_bae": _FEDMEF,
    "fedmef_no_sap": _FEDMEF,
    "fedmef_restart": _FEDMEF,
    "prunefl": (
        lambda m: 2 * m.sparse + 2 * m.activations + m.dense_gradients,
        lambda m: (m.f_s + 2 * m.f_d) * m.steps,
        lambda m: 2 * m.sparse,
        lambda m: 2 * m.sparse + m.dense_gradients,
    ),
    "zerofl": (
        lambda m: 2 * m.dense + m.pruned_activations + m.activations,
        lambda m: (2 * m.f_s + m.kept * m.f_d + m.select) * m.steps,
        lambda m: m.dense + m.sent,
        lambda m: m.dense + m.sent,
    ),
}


def estimate(method: str, terms: Terms) -> Estimate | None:
    """The appendix's estimate for a method of ours; None for a user's own, which has no formula."""
    if method not in FORMULAS:
        return None
    return Estimate(*(formula(terms) for formula in FORMULAS[method]))


def find_terms(network: NetworkFacts, setting: Setting, storage: Storage = "bitmap") -> Terms:
    """The value of every symbol for this network and setting."""
    sparse = {name: layer for name, layer in network.layers.items() if layer.sparse}
    active = layer_counts(
        {name: layer.shape for name, layer in sparse.items()}, setting.sparsity, setting.distribution
    )
    stay_dense = network.parameters - sum(layer.size for layer in sparse.values())
    sent = {
        name: active_count(layer.size, max(0.0, setting.sparsity - ZeroFL.extra))
        for name, layer in sparse.items()
    }
    top_bits = 0
    for name, layer in sparse.items():
        count = adjustment_count(setting.adjustment_rate, active[name], layer.size)
        top_bits += count * (VALUE_BITS + index_bits(layer.size))

    # E steps take epochs · samples images, so a step takes this many on average: the last batch is smaller.
    images = setting.epochs * setting.samples / setting.steps
    f_s = sum(active.get(name, layer.size) * layer.positions for name, layer in network.layers.items())
    elements = network.activations * setting.batch_size
    prune = elements * math.log2(elements) if elements else 0.0
    return Terms(
        dense=network.parameters * VALUE_BITS / 8,
        sparse=stay_dense * VALUE_BITS / 8 + _stored(sparse, active, storage),
        activations=elements * VALUE_BITS / 8,
        pruned_activations=_pruned_activations(network, setting, storage),
        top=top_bits / 8,
        dense_gradients=sum(layer.size for layer in sparse.values()) * VALUE_BITS / 8,
        sent=stay_dense * VALUE_BITS / 8 + _stored(sparse, sent, storage),
        f_d=network.multiply_adds * images,
        f_s=f_s * images,
        f_o=4 * (1 - setting.sparsity) * network.parameters + prune,
        f_o_dense=4 * network.parameters + prune,
        select=network.parameters * math.log2(network.parameters) + prune,
        kept=1 - setting.activation_sparsity,
        steps=setting.steps,
    )


def _stored(layers: Mapping[str, LayerFacts], counts: Mapping[str, int], storage: Storage) -> float:
    return sum(
        _bytes(storage, counts[name], VALUE_BITS, layer.rows, layer.columns) for name, layer in layers.items()
    )


def _pruned_activations(network: NetworkFacts, setting: Setting, storage: Storage) -> float:
    """Pruned inputs as a sparse matrix with a row for each image; the others as they are."""
    batch, whole, pruned = setting.batch_size, network.activations * setting.batch_size, 0.0
    for layer in network.layers.values():
        if layer.pruned_input:
            elements = layer.inputs * batch
            whole -= elements
            kept = active_count(elements, setting.activation_sparsity)
            pruned += _bytes(storage, kept, setting.cache_bits, batch, layer.inputs)
    return whole * VALUE_BITS / 8 + pruned


def _bytes(storage: Storage, nonzero: int, bits: int, rows: int, columns: int) -> float:
    if nonzero == rows * columns:
        return nonzero * bits / 8  # nothing is pruned: there are no positions to store
    scheme = choose_scheme(storage, nonzero, bits, rows, columns)
    return scheme_bits(scheme, nonzero, bits, rows, columns) / 8
