"""Updates are not trusted: a wrong one never touches the model, never stops the server, and has a reason."""

import math
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedmef.experiment.settings import Experiment
from fedmef.federation.server import Server
from fedmef.federation.update_checks import UpdateChecks
from fedmef.methods import Method, Plan, build_method
from fedmef.methods.base import Extras
from fedmef.methods.growth import adjustment_counts
from fedmef.nn import GrowthScores, SparseConv2d, sparse_layers
from fedmef.sparsity import mask_from_positions
from fedmef.wire import decode, encode
from fedmef.wire.container import MESSAGE_VERSION
from fedmef.wire.exchange import decode_update, encode_update
from fedmef.wire.sparse import encode_indices, encode_mask

ADJUSTS = Plan(round=4, learning_rate=0.25, adjustment_rate=0.4)
PLAIN = Plan(round=4, learning_rate=0.25)
MOST_SAMPLES = 1000
Content = tuple[dict[str, Tensor], dict[str, Any]]


def network(method: str) -> tuple[Method, nn.Module]:
    chosen = build_method(Experiment(method=method, sparsity=0.5))
    torch.manual_seed(0)
    plain = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(4, 2)
    )
    return chosen, chosen.prepare(plain)


def extras(method: str, model: nn.Module, plan: Plan) -> Extras:
    """What an honest device would send beside its weights."""
    layers = sparse_layers(model)
    if method == "zerofl":
        sparse = {name: layer for name, layer in layers.items() if type(layer) is not SparseConv2d}
        five = {name: mask_from_positions(torch.arange(5), sparse[name].geometry.size) for name in sparse}
        return Extras(tensors={f"{name}.sent": torch.ones(5) for name in sparse}, masks=five)
    if not plan.adjusts:
        return Extras()
    if method == "feddst":
        return Extras(masks={name: layer.mask for name, layer in layers.items()})
    if method == "prunefl":
        sparse = {name: layer for name, layer in layers.items() if layer.density < 1}
        sizes = {f"{name}.importance": torch.rand(layer.geometry.size) for name, layer in sparse.items()}
        return Extras(tensors=sizes | {f"{name}.time": torch.tensor(4.0) for name in sparse})
    growth = {}
    for name, count in adjustment_counts(model, plan.adjustment_rate).items():
        layer = layers[name]
        pruned = sorted(set(range(layer.geometry.size)) - set(layer.active_positions().tolist()))
        growth[name] = GrowthScores(torch.tensor(pruned[:count]), torch.rand(count))
    return Extras(growth=growth)


def server_and_answer(method: str, plan: Plan, device: int = 7) -> tuple[Server, bytes]:
    chosen, model = network(method)
    answer = encode_update(device, 100, 0.5, model, extras(method, model, plan), chosen.withheld(model))
    return Server(chosen, model, UpdateChecks(MOST_SAMPLES, largest_norm=50.0)), answer


METHODS = ("fedavg", "fedmef", "fedtiny", "feddst", "prunefl", "zerofl")


@pytest.mark.parametrize("plan", [PLAIN, ADJUSTS])
@pytest.mark.parametrize("method", METHODS)
def test_an_honest_update_is_accepted(method: str, plan: Plan) -> None:
    server, answer = server_and_answer(method, plan if method != "fedavg" else PLAIN)
    updates, rejections = server.check({7: answer}, plan)
    assert rejections == []
    assert [update.device for update in updates] == [7]


def reason(answer: bytes, method: str = "fedmef", plan: Plan = ADJUSTS) -> str:
    server, _ = server_and_answer(method, plan)
    updates, (rejection,) = server.check({7: answer}, plan)
    assert updates == []
    assert rejection.device == 7
    return rejection.reason


def changed(method: str, plan: Plan, change: Callable[[dict[str, Tensor], dict[str, Any]], None]) -> bytes:
    """An honest update with something changed, and its checksum right."""
    _, answer = server_and_answer(method, plan)
    tensors, header = decode(answer, MESSAGE_VERSION)
    change(tensors, header)
    return encode(tensors, header, MESSAGE_VERSION)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda t, h: h.update(device=8), "says that it is device 8"),
        (lambda t, h: h.update(samples=0), "has 0 samples"),
        (lambda t, h: h.update(samples=MOST_SAMPLES + 1), "has 1001 samples"),
        (lambda t, h: h.update(samples=10**400), "samples is no number"),
        (lambda t, h: h.update(loss="nan"), "loss that is not finite"),
        (lambda t, h: h.pop("samples"), "not a device's update"),
        (lambda t, h: t.pop("weights/3.values"), r"sent no 3.values of shape"),
        (lambda t, h: t.update({"weights/9": torch.ones(1)}), "the model has no 9"),
        (lambda t, h: t.update({"weights/3.values": torch.ones(3)}), "sent no 3.values of shape"),
        (lambda t, h: t.update({"weights/5.bias": torch.ones(2).double()}), "float64 instead of"),
        (lambda t, h: t["weights/3.values"].fill_(math.inf), "weights that are not finite"),
        (lambda t, h: t["weights/3.values"].add_(1e4), "above max_update_norm = 50"),
        (lambda t, h: t["gradients/3"].fill_(math.nan), "gradients of 3 that are not finite"),
        (lambda t, h: t.update({"positions/3": torch.empty(0, dtype=torch.uint8)}), "is no code"),
        (lambda t, h: t.pop("gradients/3"), "growth positions without gradients"),
        (lambda t, h: [t.pop(f"{kind}/3") for kind in ("positions", "gradients")], "sent no '3'"),
        (lambda t, h: t.update({"extra/3.mask": torch.ones(1)}), "an unexpected '3.mask'"),
    ],
)
def test_a_wrong_update_is_rejected_with_its_reason(change: Callable[..., None], expected: str) -> None:
    assert expected in reason(changed("fedmef", ADJUSTS, change))


def with_growth_at(positions: Tensor) -> Callable[[dict[str, Tensor], dict[str, Any]], None]:
    def change(tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
        tensors["positions/3"] = encode_indices(positions, 4, 36, "auto")
        tensors["gradients/3"] = torch.ones(len(positions))

    return change


def test_a_growth_score_of_an_active_weight_is_rejected() -> None:
    active = sparse_layers(network("fedmef")[1])["3"].active_positions()
    assert "a weight that is active" in reason(changed("fedmef", ADJUSTS, with_growth_at(active[:3])))


def test_more_growth_scores_than_asked_for_are_rejected() -> None:
    active = set(sparse_layers(network("fedmef")[1])["3"].active_positions().tolist())
    pruned = torch.tensor(sorted(set(range(144)) - active))
    wrong = changed("fedmef", ADJUSTS, with_growth_at(pruned))
    assert f"sent {len(pruned)} growth scores of 3" in reason(wrong)


def all_ones(tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    tensors["masks/3"] = encode_mask(mask_from_positions(torch.arange(144), 144), 4, 36, "auto")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (all_ones, "does not fit its values"),
        (lambda t, h: t.update({"masks/3": torch.ones(3)}), ""),
        (lambda t, h: t.pop("masks/3"), "sent no '3'"),
        (lambda t, h: t["weights/1.running_var"].fill_(-1), "negative variance"),
    ],
)
def test_a_wrong_mask_is_rejected(change: Callable[..., None], expected: str) -> None:
    assert expected in reason(changed("feddst", ADJUSTS, change), "feddst")


def test_a_device_cannot_adjust_when_no_adjustment_is_due() -> None:
    _, answer = server_and_answer("fedmef", ADJUSTS)
    assert "an unexpected" in reason(answer, plan=PLAIN)


def test_a_rejected_update_leaves_the_others_alone() -> None:
    chosen, model = network("fedmef")
    server = Server(chosen, model)
    answers = {device: encode_update(device, 1, 0.5, model, Extras()) for device in (3, 1)}
    updates, rejections = server.check({**answers, 2: b"garbage"}, PLAIN)
    assert [update.device for update in updates] == [1, 3]
    assert [(rejection.device, rejection.diverged) for rejection in rejections] == [(2, False)]


def flip(answer: bytes, chance: random.Random) -> bytes:
    damaged = bytearray(answer)
    for _ in range(chance.choice((1, 1, 2, 8, 64))):
        damaged[chance.randrange(len(damaged))] ^= chance.randrange(1, 256)
    return bytes(damaged)


def cut(answer: bytes, chance: random.Random) -> bytes:
    start, end = sorted((chance.randrange(len(answer)), chance.randrange(len(answer))))
    return answer[:start] + answer[end + 1 :]


def splice(answer: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(answer))
    return answer[:at] + chance.randbytes(chance.randrange(1, 40)) + answer[at:]


# Not fp16 and bf16, in which a device may well send its weights.
DTYPES = (torch.float64, torch.int64, torch.uint8, torch.bool, torch.complex64)


def _reshape(tensor: Tensor, chance: random.Random) -> Tensor:
    return tensor.reshape(1, -1) if tensor.ndim != 2 else tensor.reshape(-1)


def _other_size(tensor: Tensor, chance: random.Random) -> Tensor:
    flat = tensor.reshape(-1)
    return torch.cat([flat, flat[:1]]) if chance.random() < 0.5 or not flat.numel() else flat[:-1]


def _other_type(tensor: Tensor, chance: random.Random) -> Tensor:
    return tensor.to(chance.choice([kind for kind in DTYPES if kind != tensor.dtype]))


def _not_finite(tensor: Tensor, chance: random.Random) -> Tensor:
    if not tensor.is_floating_point() or not tensor.numel():
        return _other_type(tensor, chance)
    changed_tensor = tensor.clone()
    changed_tensor.view(-1)[chance.randrange(tensor.numel())] = chance.choice((math.nan, math.inf, -math.inf))
    return changed_tensor


def rewrite(answer: bytes, chance: random.Random) -> bytes:
    """Another update with a right checksum: what a hostile device would send."""
    tensors, header = decode(answer, MESSAGE_VERSION)
    name = chance.choice(sorted(tensors))
    ways: list[Callable[[], object]] = [
        lambda: tensors.pop(name),
        lambda: tensors.update({f"{chance.choice(('weights', 'extra', 'growth/x', 'y'))}/z": torch.ones(2)}),
        lambda: tensors.update({name + "x": tensors.pop(name)}),
        lambda: tensors.update({name: _reshape(tensors[name], chance)}),
        lambda: tensors.update({name: _other_size(tensors[name], chance)}),
        lambda: tensors.update({name: _other_type(tensors[name], chance)}),
        lambda: tensors.update({name: _not_finite(tensors[name], chance)}),
        lambda: header.update(device=chance.choice((-1, 8, 10**30, "seven", None, [], 7.5e300))),
        lambda: header.update(samples=chance.choice((0, -5, 10**30, "x", None, {}, MOST_SAMPLES + 1))),
        lambda: header.update(loss=chance.choice(("nan", "inf", "x", None, []))),
        lambda: header.pop(chance.choice(sorted(header))),
        header.clear,
        lambda: tensors.update({"weights/5.weight": torch.full_like(tensors["weights/5.weight"], 1e30)}),
        partial(_wrong_extras, tensors, chance),
    ]
    chance.choice(ways)()
    return encode(tensors, header, MESSAGE_VERSION)


def _wrong_extras(tensors: dict[str, Tensor], chance: random.Random) -> None:
    codes = [name for name in tensors if name.startswith(("positions/", "masks/"))]
    if not codes:
        tensors["weights/unknown"] = torch.ones(1)
        return
    name = chance.choice(codes)
    code = tensors[name]
    every = encode_mask(mask_from_positions(torch.arange(144), 144), 4, 36, "auto")
    tensors[name] = chance.choice((code[:-1], code[:0], torch.cat([code, code]), every, code.int()))


def bombard(method: str, plan: Plan, count: int, seed: int) -> None:
    """None of so many mutated updates is taken, and each has a reason."""
    server, answer = server_and_answer(method, plan)
    before = {name: tensor.clone() for name, tensor in server.model.state_dict().items()}
    chance = random.Random(seed)
    torch.manual_seed(seed)
    for number in range(count):
        mutated = chance.choice((flip, cut, splice, rewrite, rewrite, rewrite))(answer, chance)
        if mutated == answer:
            continue
        updates, rejections = server.check({7: mutated}, plan)
        assert updates == [], f"number {number} was accepted"
        assert [bool(rejection.reason) for rejection in rejections] == [True]
    after = server.model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert decode_update(answer, server.model).device == 7


CASES = [(method, ADJUSTS if method != "fedavg" else PLAIN) for method in METHODS]


@pytest.mark.parametrize(("method", "plan"), CASES)
def test_no_mutated_update_is_taken_and_each_has_a_reason(method: str, plan: Plan) -> None:
    bombard(method, plan, 400, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "plan"), CASES)
def test_none_of_fifty_thousand_mutated_updates_is_taken(method: str, plan: Plan) -> None:
    bombard(method, plan, 50_000 // len(CASES) + 1, seed=2)
