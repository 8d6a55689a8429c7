"""Every formula on a network of two prunable layers, worked out by hand.

stem: 10 weights, 4 outputs each, 8 inputs. a: 10 x 10 weights, 2 outputs each, 16 inputs. b: 20 x 10
weights, 1 output, 32 inputs. classifier: 30 weights, 1 output. 20 other parameters. Batch of 2, 4 images,
3 epochs: E = 6 steps.
Sparsity 0.9: a has 10 active weights, b 20. ζ = 0.2 exchanges 2 of a and 4 of b.
"""

import math

import pytest

from fedmef.costs.estimate import FORMULAS, Setting, estimate, find_terms
from fedmef.costs.facts import LayerFacts, NetworkFacts
from fedmef.experiment.settings import Experiment
from fedmef.methods import METHODS

NETWORK = NetworkFacts(
    {
        "stem": LayerFacts((10, 1, 1, 1), positions=4, inputs=8, sparse=False, pruned_input=False),
        "a": LayerFacts((10, 10, 1, 1), positions=2, inputs=16, sparse=True, pruned_input=True),
        "b": LayerFacts((20, 10, 1, 1), positions=1, inputs=32, sparse=True, pruned_input=True),
        "classifier": LayerFacts((3, 10), positions=1, inputs=10, sparse=False, pruned_input=False),
    },
    other_parameters=20,
    pooled=8,
)
SETTING = Setting(0.9, batch_size=2, samples=4, epochs=3, adjustment_rate=0.2, activation_sparsity=0.75)

DENSE = 360 * 4  # M_d^p and O_d, bytes: 10 + 100 + 200 + 30 + 20 parameters
SPARSE = 60 * 4 + (100 + 10 * 32 + 200 + 20 * 32) / 8  # M_s^p and O_s: bitmaps of a and b
SPARSE_RULE = 60 * 4 + (10 * (7 + 32) + 20 * (8 + 32)) / 8  # 10 % dense: COO
WHOLE = 2 * 64 * 4  # M_d^a: 8 + 16 + 32 inputs and 8 pooled, of two images
PRUNED = 2 * 16 * 4 + (32 + 8 * 32 + 64 + 16 * 32) / 8  # M_s^a: a quarter of a's and of b's inputs stays
TOP = (2 * (7 + 32) + 4 * (8 + 32)) / 8  # M_ξ and O_ξ: index and value
F_D = 2 * (40 + 200 + 200 + 30)  # of a batch of two
F_S = 2 * (40 + 20 + 20 + 30)
PRUNING = 128 * 7  # n_a log2 n_a
F_O = 4 * 0.1 * 360 + PRUNING
ADJUSTING = 3 * F_S * 5 + F_S + 2 * F_D
SENT = 60 * 4 + (100 + 20 * 32 + 200 + 40 * 32) / 8  # ZeroFL sends a tenth of the weights more

FEDMEF = (
    2 * SPARSE + PRUNED + WHOLE + TOP,
    3 * (F_S + F_O) * 5 + (F_S + F_O) + 2 * F_D,
    2 * SPARSE,
    2 * SPARSE + TOP,
)
EXPECTED = {
    "fedavg": (2 * DENSE + 2 * WHOLE, 3 * F_D * 6, 2 * DENSE, 2 * DENSE),
    "fedavg_sap": (2 * DENSE + PRUNED + WHOLE, 3 * (F_D + 4 * 360 + PRUNING) * 6, 2 * DENSE, 2 * DENSE),
    "fl_pqsu": (2 * SPARSE + 2 * WHOLE, 3 * F_S * 6, 2 * SPARSE, 2 * SPARSE),
    "feddst": (2 * SPARSE + 2 * WHOLE + TOP, ADJUSTING, 2 * SPARSE, 2 * SPARSE),
    "fedtiny": (2 * SPARSE + 2 * WHOLE + TOP, ADJUSTING, 2 * SPARSE, 2 * SPARSE + TOP),
    "fedmef": FEDMEF,
    "fedmef_no_bae": FEDMEF,
    "fedmef_no_sap": FEDMEF,
    "fedmef_restart": FEDMEF,
    "prunefl": (
        2 * SPARSE + 2 * WHOLE + 300 * 4,
        (F_S + 2 * F_D) * 6,
        2 * SPARSE,
        2 * SPARSE + 300 * 4,
    ),
    "zerofl": (
        2 * DENSE + PRUNED + WHOLE,
        (2 * F_S + 0.25 * F_D + 360 * math.log2(360) + PRUNING) * 6,
        DENSE + SENT,
        DENSE + SENT,
    ),
}


@pytest.mark.parametrize("method", METHODS)
def test_every_formula_gives_what_the_hand_does(method: str) -> None:
    found = estimate(method, find_terms(NETWORK, SETTING))
    assert found is not None
    memory, flops, exchange, exchange_adjusting = EXPECTED[method]
    assert found.memory == pytest.approx(memory)
    assert found.flops == pytest.approx(flops)
    assert found.exchange == pytest.approx(exchange)
    assert found.exchange_adjusting == pytest.approx(exchange_adjusting)


def test_every_method_of_ours_has_a_formula_and_a_users_has_none() -> None:
    assert FORMULAS.keys() == METHODS.keys()
    assert estimate("mine:Method", find_terms(NETWORK, SETTING)) is None


def test_the_papers_density_rule_stores_ten_percent_as_coordinates() -> None:
    assert find_terms(NETWORK, SETTING, "paper").sparse == SPARSE_RULE


def test_the_density_rule_knows_all_its_schemes() -> None:
    def sparse_bits(sparsity: float) -> float:
        setting = Setting(sparsity, batch_size=2, samples=4, epochs=3, adjustment_rate=0.2)
        return (find_terms(NETWORK, setting, "paper").sparse - 60 * 4) * 8

    assert sparse_bits(0.0) == 300 * 32
    assert sparse_bits(0.5) == 300 + 150 * 32
    assert sparse_bits(0.8) == 20 * (7 + 32) + 40 * (8 + 32)
    # CSR of a: 5 x 4 bits of columns, 10 rows x 3; of b: CSC, 10 x 5 bits of rows, 10 columns x 4.
    assert sparse_bits(0.95) == 5 * 32 + 20 + 30 + 10 * 32 + 50 + 40


def test_a_dense_network_has_no_positions_to_store() -> None:
    terms = find_terms(NETWORK, Setting(0.0, 2, 4, 3, 0.2, activation_sparsity=0.0))
    assert terms.sparse == terms.dense
    assert terms.pruned_activations == terms.activations
    assert terms.top == 0  # nothing is pruned, so nothing can grow


def test_half_precision_halves_the_values_that_are_kept() -> None:
    whole = find_terms(NETWORK, SETTING).pruned_activations
    half = find_terms(NETWORK, Setting(0.9, 2, 4, 3, 0.2, 0.75, cache_bits=16)).pruned_activations
    assert whole - half == (8 + 16) * 2


def test_an_experiment_gives_its_largest_adjustment_rate() -> None:
    experiment = Experiment(
        adjust_every=10, adjust_until=20, batch_size=8, local_epochs=2, cache_dtype="fp16"
    )
    setting = Setting.of(experiment, samples=20)
    assert setting.adjustment_rate == pytest.approx(0.2)
    assert setting.steps == 6
    assert setting.cache_bits == 16


def test_a_smaller_last_batch_counts_for_what_it_is() -> None:
    terms = find_terms(NETWORK, Setting(0.9, batch_size=3, samples=4, epochs=3, adjustment_rate=0.2))
    assert terms.steps == 6
    assert terms.f_d * terms.steps == pytest.approx(470 * 12)
