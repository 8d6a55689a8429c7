import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmef.wire import MessageError
from fedmef.wire.bits import Integers, byte_count, pack_numbers, unpack_numbers
from fedmef.wire.schemes import decode_positions, encode_positions
from fedmef.wire.sizes import SCHEMES, Scheme, index_bits, scheme_bits

POSITION_SCHEMES: tuple[Scheme, ...] = tuple(scheme for scheme in SCHEMES if scheme != "dense")
# Bytes of the header, and how many parts are padded to whole bytes behind it.
HEADERS = {"bitmap": (5, 1), "coo": (5, 1), "csr": (9, 2), "csc": (9, 2), "rice": (6, 2)}


def array(*numbers: int) -> Integers:
    return np.array(numbers, dtype=np.int64)


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


@pytest.mark.parametrize("scheme", ["bitmap", "coo", "csr", "csc"])
@settings(max_examples=100, deadline=None)
@given(matrix=matrices())
def test_a_code_takes_the_bits_of_the_formula(scheme: Scheme, matrix: tuple[Integers, int, int]) -> None:
    positions, rows, columns = matrix
    header, parts = HEADERS[scheme]
    bits = scheme_bits(scheme, rows * columns, positions.size, 0, rows, columns)
    code = encode_positions(positions, rows, columns, scheme).size - header
    assert byte_count(bits) <= code < byte_count(bits) + parts


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
    expected = scheme_bits("rice", size, positions.size, 0, 1, size) / 8
    assert encode_positions(positions, 1, size, "rice").size == pytest.approx(expected, rel=0.01)


@settings(max_examples=100, deadline=None)
@given(matrix=matrices())
def test_rice_is_never_larger_than_a_bitmap_but_for_its_header(matrix: tuple[Integers, int, int]) -> None:
    positions, rows, columns = matrix
    bitmap = encode_positions(positions, rows, columns, "bitmap").size
    assert encode_positions(positions, rows, columns, "rice").size <= bitmap + 2


@settings(max_examples=100, deadline=None)
@given(numbers=st.lists(st.integers(0, 2**24 - 1), max_size=50), spare=st.integers(0, 3))
def test_numbers_of_a_few_bits_come_back(numbers: list[int], spare: int) -> None:
    width = index_bits(max(numbers, default=0) + 1) + spare
    packed = pack_numbers(array(*numbers), width)
    assert packed.size == byte_count(width * len(numbers))
    assert unpack_numbers(packed, len(numbers), width).tolist() == numbers


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
