import pytest
import torch

from fedmef.wire import MessageError, ValueRangeError
from fedmef.wire.floats import from_wire, to_wire


def test_fp32_changes_nothing() -> None:
    tensor = torch.randn(5)
    assert torch.equal(to_wire("w", tensor, "fp32"), tensor)


@pytest.mark.parametrize(("name", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_short_types_round(name: str, dtype: torch.dtype) -> None:
    tensor = torch.randn(5)
    sent = to_wire("w", tensor, name)
    assert sent.dtype == dtype
    assert torch.equal(from_wire("w", sent, torch.float32), tensor.to(dtype).float())


def test_what_is_not_a_float_stays_as_it_is() -> None:
    count = torch.tensor(70_000)
    assert torch.equal(to_wire("steps", count, "fp16"), count)


def test_a_value_that_fp16_cannot_hold_is_an_error_and_not_infinity() -> None:
    with pytest.raises(ValueRangeError, match=r"conv\.values has the value 70000, .*wire_dtype to bf16"):
        to_wire("conv.values", torch.tensor([1.0, 7e4]), "fp16")
    assert to_wire("conv.values", torch.tensor([7e4]), "bf16").isfinite().all()


def test_a_diverged_value_is_sent_as_it_is() -> None:
    assert to_wire("w", torch.tensor([torch.inf]), "fp16").isinf().all()  # the server names the device


def test_another_type_is_refused() -> None:
    with pytest.raises(MessageError, match=r"w is of type torch\.int64"):
        from_wire("w", torch.tensor([1]), torch.float32)
