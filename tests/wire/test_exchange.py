import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedmef.errors import FedmefError
from fedmef.methods.base import Extras, Plan
from fedmef.nn import GrowthScores, SparseConv2d, sparse_layers
from fedmef.sparsity import mask_from_positions
from fedmef.wire import MaskMemory, MaskMissingError, MessageError, Rule, decode, encode, mask_version
from fedmef.wire.container import MESSAGE_VERSION
from fedmef.wire.exchange import decode_broadcast, decode_update, encode_broadcast, encode_update

PLAN = Plan(round=3, learning_rate=0.1, adjustment_rate=0.4)
HEADER = {"device": 0, "samples": 1, "loss": "0"}


def model(seed: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    return nn.Sequential(SparseConv2d(8, 16, 3, sparsity=0.9, generator=generator), nn.BatchNorm2d(16))


def masks(of: nn.Module) -> dict[str, Tensor]:
    return {name: layer.mask.clone() for name, layer in sparse_layers(of).items()}


def exchange_one(of: nn.Module) -> nn.Module:
    """The same model with another mask, that differs in two positions."""
    (layer,) = sparse_layers(of).values()
    positions = layer.active_positions()
    inside = set(positions.tolist())
    grown = next(position for position in range(layer.geometry.size) if position not in inside)
    now = torch.cat([positions[1:], torch.tensor([grown])]).sort().values
    layer.assign(now, layer.values.detach().clone())
    return of


def equal(state: dict[str, Tensor], of: nn.Module) -> bool:
    own = of.state_dict()
    return state.keys() == own.keys() and all(torch.equal(state[name], own[name]) for name in own)


def tensors_of(message: bytes) -> dict[str, Tensor]:
    return decode(message, MESSAGE_VERSION)[0]


@pytest.mark.parametrize("scheme", ["auto", "paper", "dense", "bitmap", "coo", "csr", "csc", "rice"])
def test_a_broadcast_carries_the_model_with_its_masks_and_the_plan(scheme: Rule) -> None:
    state, received = decode_broadcast(encode_broadcast(model(), PLAN, scheme=scheme), model(1))
    assert received == PLAN
    assert equal(state, model())


def test_a_model_without_masks_is_sent_as_it_is() -> None:
    dense = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    message = encode_broadcast(dense, PLAN)
    assert encode_broadcast(dense, PLAN, known={}) == message
    assert equal(decode_broadcast(message, nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)))[0], dense)


def test_half_values_are_rounded_once_and_take_half() -> None:
    exact, half = (encode_broadcast(model(), PLAN, wire_dtype=dtype) for dtype in ("fp32", "fp16"))
    state, _ = decode_broadcast(half, model())
    values = model().state_dict()["0.values"]
    assert torch.equal(state["0.values"], values.half().float())
    assert len(exact) - len(half) >= 2 * values.numel()
    update = decode_update(encode_update(0, 1, 0.0, model(), Extras(), wire_dtype="bf16"), model())
    assert torch.equal(update.weights["0.values"], values.bfloat16().float())


def test_a_device_with_the_same_masks_is_sent_none(tmp_path: Path) -> None:
    memory = MaskMemory(tmp_path)
    decode_broadcast(encode_broadcast(model(), PLAN), model(), memory)
    message = encode_broadcast(model(), PLAN, known=masks(model()))
    assert "0.mask" not in tensors_of(message)
    assert equal(decode_broadcast(message, model(1), memory)[0], model())


def test_a_device_with_the_masks_before_is_sent_the_difference(tmp_path: Path) -> None:
    memory, now = MaskMemory(tmp_path), exchange_one(model())
    decode_broadcast(encode_broadcast(model(), PLAN), model(), memory)
    message = encode_broadcast(now, PLAN, known=masks(model()))
    assert tensors_of(message)["0.mask"].numel() < 25
    assert len(message) < len(encode_broadcast(now, PLAN))
    assert equal(decode_broadcast(message, model(1), memory)[0], now)
    unchanged = encode_broadcast(now, PLAN, known=masks(now))
    assert equal(decode_broadcast(unchanged, model(1), memory)[0], now)  # what came as a difference is kept


@pytest.mark.parametrize("now", [model(), exchange_one(model())])
def test_a_device_that_lacks_the_masks_says_so(now: nn.Module, tmp_path: Path) -> None:
    message = encode_broadcast(now, PLAN, known=masks(model()))
    for memory in (None, MaskMemory(tmp_path)):
        with pytest.raises(MaskMissingError):
            decode_broadcast(message, model(), memory)


def test_masks_that_are_not_those_named_are_refused(tmp_path: Path) -> None:
    memory = MaskMemory(tmp_path)
    tensors, header = decode(encode_broadcast(model(), PLAN), MESSAGE_VERSION)
    forged = encode(tensors, {**header, "masks": mask_version(masks(model(1)))}, MESSAGE_VERSION)
    with pytest.raises(MessageError, match="not those that the message names"):
        decode_broadcast(forged, model(), memory)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("version", ["../../secret", "0" * 31, 7, ["0" * 32]])
def test_a_version_never_leads_to_another_file(version: object, tmp_path: Path) -> None:
    tensors, header = decode(encode_broadcast(model(), PLAN, known=masks(model())), MESSAGE_VERSION)
    forged = encode(tensors, {**header, "masks": version}, MESSAGE_VERSION)
    with pytest.raises(MessageError, match="no version of masks"):
        decode_broadcast(forged, model(), MaskMemory(tmp_path))


@pytest.mark.parametrize(
    ("name", "tensor", "reason"),
    [
        ("1.weight", None, r"has no 1\.weight"),
        ("other", torch.zeros(1), "has no other"),
        ("1.weight", torch.zeros(3), r"1\.weight is of shape \[3\]"),
        ("1.weight", torch.full((16,), torch.nan), "not finite"),
        ("1.weight", torch.zeros(16, dtype=torch.int32), r"of type torch\.int32"),
        ("0.values", None, r"has no 0\.values"),
        ("0.values", torch.zeros(3), "3 values for 115 active positions"),
        ("0.mask", torch.zeros(9, dtype=torch.uint8), "0 active|dense"),
    ],
)
def test_a_broadcast_of_another_model_is_refused(name: str, tensor: Tensor | None, reason: str) -> None:
    tensors, header = decode(encode_broadcast(model(), PLAN), MESSAGE_VERSION)
    tensors.pop(name, None)
    if tensor is not None:
        tensors[name] = tensor
    with pytest.raises(MessageError, match=reason):
        decode_broadcast(encode(tensors, header, MESSAGE_VERSION), model())


@pytest.mark.parametrize(
    "plan",
    [
        None,
        3,
        {},
        {"round": "3", "learning_rate": 0.1},
        {"round": 1.5, "learning_rate": 0.1},
        {"round": 3, "learning_rate": -1},
        {"round": 3, "learning_rate": "fast"},
        {"round": 3, "rate": 1},
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(plan: object) -> None:
    tensors, header = decode(encode_broadcast(model(), PLAN), MESSAGE_VERSION)
    with pytest.raises(MessageError, match="plan"):
        decode_broadcast(encode(tensors, {**header, "plan": plan}, MESSAGE_VERSION), model())


def test_an_update_never_repeats_the_mask() -> None:
    update = decode_update(encode_update(7, 100, 0.5, model(), Extras()), model())
    assert (update.device, update.samples, update.loss) == (7, 100, 0.5)
    assert update.weights.keys() == {
        "0.values",
        "0.bias",
        "1.weight",
        "1.bias",
        "1.running_mean",
        "1.running_var",
    }


def test_growth_scores_masks_and_tensors_travel_with_the_update() -> None:
    growth = {"0": GrowthScores(torch.tensor([1, 1100]), torch.tensor([0.5, -0.5]))}
    mask = mask_from_positions(torch.tensor([5, 1000]), 1152)
    extras = Extras(growth, {"time": torch.tensor(3)}, {"0": mask})
    received = decode_update(encode_update(0, 1, 0.0, model(), extras), model()).extras
    assert received.growth["0"].positions.tolist() == [1, 1100]
    assert received.growth["0"].gradients.tolist() == [0.5, -0.5]
    assert received.tensors["time"].item() == 3
    assert torch.equal(received.masks["0"], mask)


def test_growth_positions_and_masks_take_a_part_of_what_they_took_plain() -> None:
    positions = torch.arange(0, 1152, 9)
    growth = Extras({"0": GrowthScores(positions, torch.zeros(positions.numel()))})
    sent = tensors_of(encode_update(0, 1, 0.0, model(), growth))
    assert sent["positions/0"].numel() < 0.2 * 4 * positions.numel()
    mask = Extras(masks=masks(model()))
    assert tensors_of(encode_update(0, 1, 0.0, model(), mask))["masks/0"].numel() < 0.6 * 1152 / 8


def test_growth_positions_in_disorder_are_not_sent() -> None:
    growth = Extras({"0": GrowthScores(torch.tensor([5, 1]), torch.zeros(2))})
    with pytest.raises(FedmefError, match="growth positions of 0 are not ascending"):
        encode_update(0, 1, 0.0, model(), growth)


def test_positions_belong_to_a_sparse_layer() -> None:
    with pytest.raises(FedmefError, match="positions of 1, which is no sparse layer"):
        encode_update(0, 1, 0.0, model(), Extras(masks={"1": torch.zeros(1, dtype=torch.uint8)}))


def test_a_diverged_loss_can_be_sent() -> None:
    assert math.isnan(decode_update(encode_update(0, 1, math.nan, model(), Extras()), model()).loss)


@pytest.mark.parametrize(
    "name",
    [
        "values",
        "other/values",
        "weights/values",
        "growth/0",
        "positions/0",
        "gradients/0",
        "masks/1",
        "masks/0",
    ],
)
def test_an_update_of_another_form_is_refused(name: str) -> None:
    with pytest.raises(MessageError):
        decode_update(encode({name: torch.zeros(1)}, HEADER, MESSAGE_VERSION), model())


@pytest.mark.parametrize(
    "wrong", [{"device": "0"}, {"device": -1}, {"samples": 10**400}, {"samples": 1.5}, {"loss": "low"}]
)
def test_an_update_with_wrong_numbers_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(MessageError):
        decode_update(encode({}, {**HEADER, **wrong}, MESSAGE_VERSION), model())


def test_a_broadcast_is_no_update_and_the_other_way_round() -> None:
    with pytest.raises(MessageError):
        decode_update(encode_broadcast(model(), PLAN), model())
    with pytest.raises(MessageError):
        decode_broadcast(encode_update(0, 1, 0.0, model(), Extras()), model())


def test_a_file_is_no_message() -> None:
    with pytest.raises(MessageError, match="version 3"):
        decode_update(encode({}, HEADER), model())
