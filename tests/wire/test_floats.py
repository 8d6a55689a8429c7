"""Types on the wire; bfloat16, which NumPy lacks, is compared with PyTorch's."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmef.errors import MessageError, ValueRangeError
from fedmef.sparsity.arrays import Array
from fedmef.wire.floats import WireType, from_bfloat16, from_wire, to_bfloat16, to_wire

NUMBERS = np.random.default_rng(0).standard_normal(50).astype(np.float32)


def test_fp32_changes_nothing() -> None:
    assert to_wire("w", NUMBERS, "fp32") is NUMBERS
    assert from_wire("w", NUMBERS, "float32") is NUMBERS


@pytest.mark.parametrize(("name", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
@pytest.mark.parametrize("wanted", ["float32", "float64"])
def test_short_types_round_as_pytorch_does(name: WireType, dtype: torch.dtype, wanted: str) -> None:
    sent = to_wire("w", NUMBERS, name)
    assert sent.itemsize == 2
    received = from_wire("w", sent, wanted)
    assert received.dtype == wanted
    assert np.array_equal(received, torch.from_numpy(NUMBERS).to(dtype).float().numpy())


def test_what_is_not_a_float_stays_as_it_is() -> None:
    count = np.array(70_000)
    assert to_wire("steps", count, "fp16") is count
    assert to_wire("steps", count, "bf16") is count
    assert from_wire("steps", count, "int64") is count


def test_a_value_that_fp16_cannot_hold_is_an_error_and_not_infinity() -> None:
    with pytest.raises(ValueRangeError, match=r"conv\.values has the value 70000, .*wire_dtype to bf16"):
        to_wire("conv.values", np.array([1.0, 7e4], dtype=np.float32), "fp16")
    sent = to_wire("conv.values", np.array([7e4], dtype=np.float32), "bf16")
    assert np.isfinite(from_wire("conv.values", sent, "float32")).all()


@pytest.mark.parametrize("value", [np.float32(3.4e38), np.float64(1e300)])
def test_a_value_that_bf16_cannot_hold_is_an_error_and_not_infinity(value: np.floating[Any]) -> None:
    with pytest.raises(ValueRangeError, match="bf16 ends at"):
        to_wire("w", np.array([value]), "bf16")


@pytest.mark.parametrize("name", ["fp16", "bf16"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_diverged_value_is_sent_as_it_is(name: WireType, value: float) -> None:
    sent = to_wire("w", np.array([value], dtype=np.float32), name)
    assert np.array_equal(from_wire("w", sent, "float32"), [value], equal_nan=True)  # the server names it


@pytest.mark.parametrize(
    ("array", "wanted", "kind"),
    [
        (np.array([1]), "float32", "int64"),
        (np.array([1], dtype=np.uint8), "float32", "uint8"),
        (np.array([1.0]), "float32", "float64"),
        (np.array([1.0], dtype=np.float16), "int64", "float16"),
        (np.array([1], dtype=np.uint16), "uint8", "uint16"),
    ],
)
def test_another_type_is_refused(array: Array, wanted: str, kind: str) -> None:
    with pytest.raises(MessageError, match=f"w is of type {kind} instead of {wanted}"):
        from_wire("w", array, wanted)


@given(
    bits=st.lists(
        st.integers(0, 2**32 - 1)
        # Ties, and what is next to them: 0x7FFF, 0x8000 and 0x8001 below the last bit that stays.
        | st.builds(
            lambda high, low: high << 16 | low,
            st.integers(0, 2**16 - 1),
            st.sampled_from((0x7FFF, 0x8000, 0x8001)),
        ),
        max_size=20,
    )
)
@settings(deadline=None, max_examples=300)
def test_bfloat16_is_pytorchs_to_the_bit(bits: list[int]) -> None:
    floats = np.array(bits, dtype=np.uint32).view(np.float32)
    expected = torch.from_numpy(floats).to(torch.bfloat16)
    rounded = to_bfloat16(floats)
    numbers = ~np.isnan(floats)
    assert np.array_equal(rounded[numbers], expected.view(torch.uint16).numpy()[numbers])
    assert np.isnan(from_bfloat16(rounded)[~numbers]).all()
    assert np.array_equal(from_bfloat16(rounded), expected.float().numpy(), equal_nan=True)


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_bfloat16_keeps_the_shape(shape: tuple[int, ...]) -> None:
    array = np.ones(shape, dtype=np.float32)
    assert to_bfloat16(array).shape == shape
    assert from_bfloat16(to_bfloat16(array)).tolist() == array.tolist()
