"""Storage schemes: what they take, which one is chosen, and that positions survive them."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmef.errors import MessageError
from fedmef.sparsity.arrays import Integers
from fedmef.sparsity.masks import packed_size
from fedmef.wire.bits import pack_numbers
from fedmef.wire.schemes import (
    SCHEMES,
    Rule,
    Scheme,
    choose_scheme,
    decode_positions,
    encode_positions,
    index_bits,
    most_code_bytes,
    scheme_bits,
)

POSITION_SCHEMES: tuple[Scheme, ...] = tuple(scheme for scheme in SCHEMES if scheme != "dense")
# Bytes of the header, and how many parts are padded to whole bytes behind it.
HEADERS = {"bitmap": (5, 1), "coo": (5, 1), "csr": (9, 2), "csc": (9, 2), "rice": (6, 2)}


def array(*numbers: int) -> Integers:
    return np.array(numbers, dtype=np.int64)


def test_the_numbers_of_schemes_are_those_of_the_message_format() -> None:
    assert {name: scheme.number for name, scheme in SCHEMES.items()} == {
        "dense": 0,
        "bitmap": 1,
        "coo": 2,
        "csr": 3,
        "csc": 4,
        "rice": 5,
    }


@pytest.mark.parametrize(("count", "bits"), [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (1024, 10)])
def test_an_index_takes_the_rounded_up_logarithm(count: int, bits: int) -> None:
    assert index_bits(count) == bits


@pytest.mark.parametrize(
    ("scheme", "bits"),
    [
        ("dense", 100 * 32),
        ("bitmap", 100 + 10 * 32),
        ("coo", 10 * 7 + 10 * 32),
        ("csr", 10 * 5 + 5 * 4 + 10 * 32),  # 5 rows of 20
        ("csc", 10 * 3 + 20 * 4 + 10 * 32),
    ],
)
def test_the_formulas_of_the_appendix(scheme: Scheme, bits: int) -> None:
    assert scheme_bits(scheme, 10, 32, 5, 20) == bits


def test_rice_comes_close_to_the_entropy_of_a_random_mask() -> None:
    entropy = -(0.1 * math.log2(0.1) + 0.9 * math.log2(0.9))
    bits = scheme_bits("rice", 100_000, 0, 1000, 1000) / 1_000_000
    assert bits == pytest.approx(0.4756, abs=1e-4)
    assert entropy < bits < 1.02 * entropy


@pytest.mark.parametrize("density", [0.001, 0.01, 0.1, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("bits", [0, 16, 32])
def test_auto_takes_the_smallest(density: float, bits: int) -> None:
    shape = (int(4096 * density), bits, 64, 64)
    possible = [scheme for scheme in SCHEMES if bits or scheme != "dense"]
    chosen = choose_scheme("auto", *shape)
    assert chosen in possible
    assert scheme_bits(chosen, *shape) == min(scheme_bits(scheme, *shape) for scheme in possible)


@pytest.mark.parametrize(
    ("nonzero", "rows", "scheme"),
    [
        (1000, 20, "dense"),
        (900, 20, "dense"),
        (899, 20, "bitmap"),
        (300, 20, "bitmap"),
        (299, 20, "coo"),
        (100, 20, "coo"),
        (99, 20, "csr"),
        (99, 50, "csc"),
    ],
)
def test_the_rule_of_the_paper_goes_by_density(nonzero: int, rows: int, scheme: Scheme) -> None:
    assert choose_scheme("paper", nonzero, 32, rows, 1000 // rows) == scheme


def test_a_layer_pruned_to_90_percent_counts_as_10_percent_dense() -> None:
    assert choose_scheme("paper", 3686, 32, 64, 576) == "coo"


@pytest.mark.parametrize("rule", ["dense", "paper"])
def test_positions_alone_are_never_dense(rule: Rule) -> None:
    assert choose_scheme(rule, 100, 0, 10, 10) == "bitmap"


@st.composite
def matrices(draw: st.DrawFn) -> tuple[Integers, int, int]:
    """Ascending positions in a matrix, from none to all, also in a single row, column or element."""
    rows, columns = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    count = draw(st.sampled_from([0, 1, rows * columns, draw(st.integers(0, rows * columns))]))
    order = np.random.default_rng(draw(st.integers(0, 2**32))).permutation(rows * columns)
    return np.sort(order[:count]), rows, columns


@pytest.mark.parametrize("scheme", POSITION_SCHEMES)
@settings(max_examples=150, deadline=None)
@given(matrix=matrices())
def test_positions_come_back_in_every_scheme(scheme: Scheme, matrix: tuple[Integers, int, int]) -> None:
    positions, rows, columns = matrix
    decoded = decode_positions(encode_positions(positions, rows, columns, scheme), rows, columns)
    assert decoded.tolist() == positions.tolist()


@pytest.mark.parametrize("scheme", POSITION_SCHEMES)
@settings(max_examples=150, deadline=None)
@given(matrix=matrices())
def test_no_code_takes_more_than_the_bound(scheme: Scheme, matrix: tuple[Integers, int, int]) -> None:
    positions, rows, columns = matrix
    code = encode_positions(positions, rows, columns, scheme)
    assert code.size <= most_code_bytes(positions.size, rows, columns)


@pytest.mark.parametrize("scheme", ["bitmap", "coo", "csr", "csc"])
@settings(max_examples=100, deadline=None)
@given(matrix=matrices())
def test_a_code_takes_the_bits_of_the_formula(scheme: Scheme, matrix: tuple[Integers, int, int]) -> None:
    positions, rows, columns = matrix
    header, parts = HEADERS[scheme]
    bits = scheme_bits(scheme, positions.size, 0, rows, columns)
    code = encode_positions(positions, rows, columns, scheme).size - header
    assert packed_size(bits) <= code < packed_size(bits) + parts


def test_the_parts_of_a_code_are_padded_one_by_one() -> None:
    # 3 columns of 4 bits and 5 starts of 2 bits: 12 and 10 bits
    assert encode_positions(array(0, 17, 44), 5, 16, "csr").size == 9 + 2 + 2
    assert encode_positions(array(0, 17, 44), 5, 16, "coo").size == 5 + 3  # 3 times 7 bits
    assert encode_positions(array(0, 17, 44), 5, 16, "bitmap").size == 5 + 10


def test_rice_by_hand() -> None:
    # gaps 0, 2, 5; with k = 1 the low bits are 0, 0, 1, and the rest 0, 1, 2 in unary is 1 01 001
    code = encode_positions(array(0, 3, 9), 1, 16, "rice")
    assert code.tolist() == [5, 3, 0, 0, 0, 1, 0b100, 0b100101]


@pytest.mark.parametrize("density", [0.01, 0.05, 0.1, 0.3])
def test_rice_takes_what_is_expected_of_a_random_mask(density: float) -> None:
    size = 200_000
    positions = np.sort(np.random.default_rng(0).permutation(size)[: int(density * size)])
    expected = scheme_bits("rice", positions.size, 0, 1, size) / 8
    assert encode_positions(positions, 1, size, "rice").size == pytest.approx(expected, rel=0.01)


@settings(max_examples=100, deadline=None)
@given(matrix=matrices())
def test_rice_is_never_larger_than_a_bitmap_but_for_its_header(matrix: tuple[Integers, int, int]) -> None:
    positions, rows, columns = matrix
    bitmap = encode_positions(positions, rows, columns, "bitmap").size
    assert encode_positions(positions, rows, columns, "rice").size <= bitmap + 2


def code_of(scheme: Scheme) -> list[int]:
    return list(encode_positions(array(1, 4, 11), 3, 5, scheme).tobytes())


def refused(code: list[int]) -> str:
    with pytest.raises(MessageError) as refusal:
        decode_positions(np.array(code, dtype=np.uint8), 3, 5)
    return str(refusal.value)


@pytest.mark.parametrize("scheme", POSITION_SCHEMES)
def test_a_code_of_another_length_is_refused(scheme: Scheme) -> None:
    code = code_of(scheme)
    for end in range(len(code)):
        refused(code[:end])
    refused([*code, 0])


@pytest.mark.parametrize("scheme", POSITION_SCHEMES)
@pytest.mark.parametrize("count", [2, 4, 16, 255])
def test_a_wrong_count_is_refused(scheme: Scheme, count: int) -> None:
    code = code_of(scheme)
    refused([code[0], count, *code[2:]])


def test_a_count_that_claims_to_be_huge_is_refused_at_once() -> None:
    assert "4294967295 active positions of 15" in refused([2, 255, 255, 255, 255])


def test_an_unknown_scheme_is_refused() -> None:
    assert "number 6" in refused([6, 0, 0, 0, 0])


def test_a_dense_code_alone_tells_no_positions() -> None:
    assert "no positions without its values" in refused([0, 3, 0, 0, 0])


@pytest.mark.parametrize("scheme", ["bitmap", "coo", "csr", "csc"])
def test_padding_that_is_set_is_refused(scheme: Scheme) -> None:
    code = code_of(scheme)
    code[-1] |= 0x80
    assert "padding" in refused(code)


@pytest.mark.parametrize(
    ("positions", "reason"), [((1, 4, 15), "15 of 15"), ((4, 4, 5), "ascending"), ((4, 1, 5), "ascending")]
)
def test_positions_out_of_range_double_or_disordered_are_refused(
    positions: tuple[int, ...], reason: str
) -> None:
    packed = pack_numbers(array(*positions), 4).tolist()
    assert reason in refused([2, 3, 0, 0, 0, *packed])


def test_gaps_that_lead_out_of_the_tensor_are_refused() -> None:
    assert "position 15 of 15" in refused([5, 1, 0, 0, 0, 3, 0b111, 0b10])


def test_more_low_bits_than_there_are_positions_are_refused() -> None:
    assert "200 low bits" in refused([5, 1, 0, 0, 0, 200, *[0] * 25, 1])


@pytest.mark.parametrize(
    ("last", "columns", "starts"),
    [
        (3, (1, 4, 1), (0, 2, 2)),  # there are 3 rows
        (2, (1, 7, 1), (0, 2, 2)),  # there are 5 columns
        (2, (1, 4, 1), (1, 2, 2)),  # the first row starts at 0
        (2, (1, 4, 1), (0, 3, 2)),  # a row starts before the one above
        (2, (1, 4, 1), (0, 3, 3)),  # the last row with a position starts behind the last position
        (1, (1, 4, 1), (0, 2, 1)),  # a row behind the last one must look like it
        (0, (1, 1, 4), (0, 2, 2)),  # a column twice in one row
    ],
)
def test_rows_that_make_no_sense_are_refused(
    last: int, columns: tuple[int, ...], starts: tuple[int, ...]
) -> None:
    parts = [*pack_numbers(array(*columns), 3).tolist(), *pack_numbers(array(*starts), 2).tolist()]
    refused([3, 3, 0, 0, 0, last, 0, 0, 0, *parts])
