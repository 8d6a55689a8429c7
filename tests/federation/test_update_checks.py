"""Updates are not trusted: a wrong one never touches the model, never stops the server, and has a reason."""

import math
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import nn

from fedmef.experiment.settings import Experiment
from fedmef.federation.preparation import prepare as prepare_run
from fedmef.federation.server import Server
from fedmef.federation.simulated.fleet import Fleet
from fedmef.federation.update_checks import UpdateChecks, largest_answer
from fedmef.methods import Extras, Job, Method, Update, find_method
from fedmef.methods.growth import adjustment_counts
from fedmef.methods.zerofl import swat_layers
from fedmef.nn.export import export_network, module_state
from fedmef.nn.prepare import prepare
from fedmef.sparsity import GrowthScores, mask_from_positions
from fedmef.sparsity.arrays import Array, Integers
from fedmef.sparsity.model import Model
from fedmef.sparsity.network import Input
from fedmef.wire.container import MESSAGE_VERSION, decode, encode
from fedmef.wire.schemes import Rule
from fedmef.wire.sparse import encode_indices, encode_mask
from fedmef.wire.store import Store
from fedmef.wire.update import decode_update, encode_update
from tests.federation.small import TINY

PLAIN = Job(method="any", round=4, seed=0, learning_rate=0.25, initial_rate=0.5)
ADJUSTS = Job(method="any", round=4, seed=0, learning_rate=0.25, initial_rate=0.5, adjustment_rate=0.4)
MESSAGE = "f" * 32  # checksum of what the devices were sent
Change = Callable[[dict[str, Array], dict[str, Any]], object]


@cache
def prepared(method: str) -> Model:
    torch.manual_seed(0)
    plain = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(4, 2)
    )
    module = prepare(plain, find_method(method).recipe, Experiment(method=method, sparsity=0.5))
    network = export_network(module, Input((1, 5, 5), (0.5,), (0.25,)))
    assert network.opaque is None
    return Model(network, module_state(module, network))


def fresh(method: str) -> Model:
    """A model of its own; arrays are never changed, so they may be shared."""
    return Model(prepared(method).network, dict(prepared(method).state))


def extras(method: str, model: Model, job: Job) -> Extras:
    """What an honest device would send besides its weights."""
    layers, chance = model.network.sparse_layers, np.random.default_rng(0)
    if method == "zerofl":
        sparse = swat_layers(model.network)
        assert sparse
        five = {name: mask_from_positions(np.arange(5), layer.size) for name, layer in sparse.items()}
        sent = {f"{name}.sent": np.ones(5, dtype=np.float32) for name in sparse}
        return Extras(arrays=sent, masks=five)
    if not job.adjusts:
        return Extras()
    if method == "feddst":
        return Extras(masks=model.masks())
    if method == "prunefl":
        return Extras(
            arrays={
                f"{name}.importance": chance.random(layer.size, dtype=np.float32)
                for name, layer in layers.items()
            }
        )
    growth = {}
    for name, count in adjustment_counts(model, job.adjustment_rate).items():
        pruned = np.setdiff1d(np.arange(layers[name].size), model.positions(name))
        growth[name] = GrowthScores(pruned[:count], chance.random(count, dtype=np.float32))
    assert growth
    return Extras(growth=growth)


def honest_answer(method: str, job: Job, device: int = 7) -> bytes:
    model = fresh(method)
    withheld = find_method(method)().withheld(model.network)
    weights = {name: model.state[name] for name in model.network.floats if name not in withheld}
    update = Update(device, 100, 0.5, weights, extras(method, model, job), job.round, MESSAGE)
    return encode_update(update, model.network)


def server_and_answer(method: str, job: Job, device: int = 7) -> tuple[Server, bytes]:
    checks = UpdateChecks(largest_norm=50.0)
    server = Server(Experiment(method=method, sparsity=0.5), fresh(method), checks)
    server.sent = dict.fromkeys(range(10), MESSAGE)
    return server, honest_answer(method, job, device)


METHODS = ("fedavg", "fedmef", "fedtiny", "feddst", "prunefl", "zerofl")


@pytest.mark.parametrize("job", [PLAIN, ADJUSTS])
@pytest.mark.parametrize("method", METHODS)
def test_an_honest_update_is_accepted(method: str, job: Job) -> None:
    server, answer = server_and_answer(method, job if method != "fedavg" else PLAIN)
    updates, rejections = server.check({7: answer}, job)
    assert rejections == []
    assert [update.device for update in updates] == [7]


def reason(answer: bytes, method: str = "fedmef", job: Job = ADJUSTS) -> str:
    server, _ = server_and_answer(method, job)
    updates, (rejection,) = server.check({7: answer}, job)
    assert updates == []
    assert rejection.device == 7
    return rejection.reason


def changed(method: str, job: Job, change: Change) -> bytes:
    """An honest update with something changed, and its checksum right."""
    arrays, header = decode(honest_answer(method, job), MESSAGE_VERSION)
    arrays = {name: array.copy() for name, array in arrays.items()}
    change(arrays, header)
    return encode(arrays, header, MESSAGE_VERSION)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda a, h: h.update(device=8), "says that it is device 8"),
        (lambda a, h: h.update(samples=0), "has 0 samples"),
        (lambda a, h: h.update(answers="e" * 32, round=2), "another message than it was sent, of round 3"),
        (lambda a, h: h.update(samples=10**400), "samples is no number"),
        (lambda a, h: h.update(loss="nan"), "loss that is not finite"),
        (lambda a, h: h.pop("samples"), "not a device's update"),
        (lambda a, h: a.pop("weights/3.values"), r"sent no 3.values of shape"),
        (lambda a, h: a.update({"weights/9": np.ones(1)}), "the model has no 9"),
        (
            lambda a, h: a.update({"weights/3.values": np.ones(3, dtype=np.float32)}),
            "sent no 3.values of shape",
        ),
        (lambda a, h: a.update({"weights/5.bias": np.ones(2)}), "float64 instead of"),
        (lambda a, h: a["weights/3.values"].fill(math.inf), "weights that are not finite"),
        (
            lambda a, h: a.update({"weights/3.values": a["weights/3.values"] + np.float32(1e4)}),
            "above max_update_norm = 50",
        ),
        (lambda a, h: a["gradients/3"].fill(math.nan), "gradients of 3 that are not finite"),
        (lambda a, h: a.update({"positions/3": np.empty(0, dtype=np.uint8)}), "is no code"),
        (lambda a, h: a.pop("gradients/3"), "growth positions without gradients"),
        (lambda a, h: [a.pop(f"{kind}/3") for kind in ("positions", "gradients")], "sent no '3'"),
        (lambda a, h: a.update({"extra/3.mask": np.ones(1)}), "an unexpected '3.mask'"),
    ],
)
def test_a_wrong_update_is_rejected_with_its_reason(change: Change, expected: str) -> None:
    assert expected in reason(changed("fedmef", ADJUSTS, change))


def with_growth_at(positions: Integers) -> Change:
    def change(arrays: dict[str, Array], header: dict[str, Any]) -> None:
        arrays["positions/3"] = encode_indices(positions, 4, 36, "auto")
        arrays["gradients/3"] = np.ones(len(positions), dtype=np.float32)

    return change


def test_a_growth_score_of_an_active_weight_is_rejected() -> None:
    active = fresh("fedmef").positions("3")
    assert "a weight that is active" in reason(changed("fedmef", ADJUSTS, with_growth_at(active[:3])))


def test_more_growth_scores_than_asked_for_are_rejected() -> None:
    pruned = np.setdiff1d(np.arange(144), fresh("fedmef").positions("3"))
    wrong = changed("fedmef", ADJUSTS, with_growth_at(pruned))
    assert f"sent {len(pruned)} growth scores of 3" in reason(wrong)


def all_ones(arrays: dict[str, Array], header: dict[str, Any]) -> None:
    arrays["masks/3"] = encode_mask(mask_from_positions(np.arange(144), 144), 4, 36, "auto")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (all_ones, "does not fit its values"),
        (lambda a, h: a.update({"masks/3": np.ones(3, dtype=np.float32)}), ""),
        (lambda a, h: a.pop("masks/3"), "sent no '3'"),
        (lambda a, h: a["weights/1.running_var"].fill(-1), "negative variance"),
    ],
)
def test_a_wrong_mask_is_rejected(change: Change, expected: str) -> None:
    assert expected in reason(changed("feddst", ADJUSTS, change), "feddst")


def test_a_device_cannot_adjust_when_no_adjustment_is_due() -> None:
    _, answer = server_and_answer("fedmef", ADJUSTS)
    assert "an unexpected" in reason(answer, job=PLAIN)


def test_a_rejected_update_leaves_the_others_alone() -> None:
    server, _ = server_and_answer("fedmef", PLAIN)
    answers = {device: honest_answer("fedmef", PLAIN, device) for device in (3, 1)}
    updates, rejections = server.check({**answers, 2: b"garbage"}, PLAIN)
    assert [update.device for update in updates] == [1, 3]
    assert [(rejection.device, rejection.diverged) for rejection in rejections] == [(2, False)]


def test_what_a_check_itself_stumbles_over_costs_that_update_only(monkeypatch: pytest.MonkeyPatch) -> None:
    server, answer = server_and_answer("fedmef", PLAIN)

    def stumble(*_: object) -> None:
        raise ZeroDivisionError("x" * 10_000)

    monkeypatch.setattr(server.method, "check", stumble)
    updates, (rejection,) = server.check({7: answer}, PLAIN)
    assert updates == []
    assert rejection.reason.startswith("ZeroDivisionError: xxx")
    assert len(rejection.reason) == 500


def test_without_bounds_any_number_of_samples_and_any_norm_will_do() -> None:
    def more(arrays: dict[str, Array], header: dict[str, Any]) -> None:
        header["samples"] = 10**9
        arrays["weights/3.values"] = arrays["weights/3.values"] + np.float32(1e4)

    server = Server(Experiment(method="fedmef", sparsity=0.5), fresh("fedmef"), UpdateChecks())
    server.sent = {7: MESSAGE}
    (update,), rejections = server.check({7: changed("fedmef", PLAIN, more)}, PLAIN)
    assert (update.samples, rejections) == (10**9, [])


@pytest.mark.parametrize("scheme", get_args(Rule))
@pytest.mark.parametrize("job", [PLAIN, ADJUSTS])
@pytest.mark.parametrize("method", METHODS)
def test_no_honest_answer_is_too_long(method: str, job: Job, scheme: Rule) -> None:
    job = job if method != "fedavg" else PLAIN
    model, part = fresh(method), find_method(method)()
    update = decode_update(honest_answer(method, job), model.network)
    assert len(encode_update(update, model.network, scheme=scheme)) <= largest_answer(part, model, job)


@pytest.mark.parametrize("method", ["fedavg", "fl_pqsu", "fedmef", "feddst", "prunefl", "zerofl"])
def test_the_largest_answer_is_not_much_larger_than_an_honest_one(tmp_path: Path, method: str) -> None:
    """Of a network whose arrays take more than their names; ZeroFL's and FedDST's masks are coded well."""
    experiment = Experiment(**{**TINY, "method": method, "width": 64, "rounds": 4})
    prepared = prepare_run(experiment)
    server = Server(prepared.experiment, prepared.model)
    fleet = Fleet.build(prepared.experiment, prepared.dataset, Store(tmp_path))
    for number in (0, 1):  # 1 adjusts
        job = server.job(number)
        answer = fleet.train(0, server.broadcast(job, [0])[0])
        assert len(answer) <= largest_answer(server.method, server.model, job) < 2.5 * len(answer) + 10_000


@pytest.mark.parametrize("job", [PLAIN, ADJUSTS])
def test_an_answer_that_is_too_long_is_not_even_read(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    server, answer = server_and_answer("fedmef", job)
    most = largest_answer(server.method, server.model, job)

    def read(*_: object) -> None:
        raise AssertionError("it was read")

    monkeypatch.setattr("fedmef.federation.update_checks.decode_update", read)
    _, (rejection,) = server.check({7: answer + bytes(most)}, job)
    assert rejection.reason == f"device 7 sent {len(answer) + most:,} bytes, more than {most:,}"


def test_extras_that_a_method_does_not_expect_have_no_room() -> None:
    model = fresh("fl_pqsu")
    assert find_method("fl_pqsu")().extra_bytes(model, PLAIN) == 0
    assert find_method("zerofl")().extra_bytes(fresh("zerofl"), PLAIN) > 0


def test_an_answer_to_another_message_is_a_replay() -> None:
    server, answer = server_and_answer("fedmef", PLAIN)
    server.broadcast(PLAIN, [7])
    _, (rejection,) = server.check({7: answer}, PLAIN)
    assert rejection.reason == "device 7 answers another message than it was sent, of round 5: a replay"
    fresh_answer = replace(decode_update(answer, server.model.network), answers=server.sent[7])
    assert server.check({7: encode_update(fresh_answer, server.model.network)}, PLAIN)[1] == []


def test_the_servers_own_count_of_samples_goes_before_what_a_device_says() -> None:
    _, answer = server_and_answer("fedmef", PLAIN)
    update = decode_update(answer, fresh("fedmef").network)
    checks = UpdateChecks(samples=[0, 0, 0, 0, 0, 0, 0, 40], samples_ratio=10.0)
    (counted,), doubts = checks.weigh([update])
    assert counted.samples == 40
    assert doubts == {7: "says that it has 100 samples, and counts for 40"}
    assert checks.weigh([replace(update, samples=40)])[1] == {}
    assert checks.compare([replace(update, samples=4000)], Method(), fresh("fedmef"), PLAIN) == []
    (absurd,) = checks.compare([replace(update, samples=4001)], Method(), fresh("fedmef"), PLAIN)
    assert (absurd.device, absurd.diverged) == (7, False)


def test_a_private_round_compares_nobody_with_others() -> None:
    """Whether a device is there must not decide whether another one counts."""
    private = Experiment(method="fedavg_sap", noise_multiplier=1.0, clip_norm=1.0)
    checks = UpdateChecks.of(private)
    assert (checks.norm_ratio, checks.samples_ratio) == (0, 0)
    ordinary = UpdateChecks.of(Experiment(), [3, 4])
    assert (ordinary.norm_ratio, ordinary.samples_ratio, ordinary.samples) == (20, 10, [3, 4])


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


# Not fp16 and raw bf16, in which a device may well send its weights.
DTYPES = ("float64", "int64", "uint8", "bool", "complex64")


def _reshape(array: Array, chance: random.Random) -> Array:
    return array.reshape(1, -1) if array.ndim != 2 else array.reshape(-1)


def _other_size(array: Array, chance: random.Random) -> Array:
    flat = array.reshape(-1)
    return np.append(flat, flat[:1]) if chance.random() < 0.5 or not flat.size else flat[:-1]


def _other_type(array: Array, chance: random.Random) -> Array:
    with np.errstate(all="ignore"):
        return array.astype(chance.choice([kind for kind in DTYPES if array.dtype != kind]))


def _not_finite(array: Array, chance: random.Random) -> Array:
    if array.dtype.kind != "f" or not array.size:
        return _other_type(array, chance)
    wrong = array.copy()
    wrong.reshape(-1)[chance.randrange(array.size)] = chance.choice((math.nan, math.inf, -math.inf))
    return wrong


def rewrite(answer: bytes, chance: random.Random) -> bytes:
    """Another update with a right checksum: what a hostile device would send."""
    arrays, header = decode(answer, MESSAGE_VERSION)
    name = chance.choice(sorted(arrays))
    ways: list[Callable[[], object]] = [
        lambda: arrays.pop(name),
        lambda: arrays.update({f"{chance.choice(('weights', 'extra', 'growth/x', 'y'))}/z": np.ones(2)}),
        lambda: arrays.update({name + "x": arrays.pop(name)}),
        lambda: arrays.update({name: _reshape(arrays[name], chance)}),
        lambda: arrays.update({name: _other_size(arrays[name], chance)}),
        lambda: arrays.update({name: _other_type(arrays[name], chance)}),
        lambda: arrays.update({name: _not_finite(arrays[name], chance)}),
        lambda: header.update(device=chance.choice((-1, 8, 10**30, "seven", None, [], 7.5e300))),
        lambda: header.update(samples=chance.choice((0, -5, 10**30, "x", None, {}))),
        lambda: header.update(round=chance.choice((-1, 10**30, "x", None, []))),
        lambda: header.update(answers=chance.choice(("", "e" * 32, "x", None, [], 10**30))),
        lambda: header.update(loss=chance.choice(("nan", "inf", "x", None, []))),
        lambda: header.pop(chance.choice(sorted(header))),
        header.clear,
        lambda: arrays.update({"weights/5.weight": np.full((2, 4), 1e30, dtype=np.float32)}),
        partial(_wrong_extras, arrays, chance),
    ]
    chance.choice(ways)()
    return encode(arrays, header, MESSAGE_VERSION)


def _wrong_extras(arrays: dict[str, Array], chance: random.Random) -> None:
    codes = [name for name in arrays if name.startswith(("positions/", "masks/"))]
    if not codes:
        arrays["weights/unknown"] = np.ones(1)
        return
    name = chance.choice(codes)
    code = arrays[name]
    every = encode_mask(mask_from_positions(np.arange(144), 144), 4, 36, "auto")
    arrays[name] = chance.choice((code[:-1], code[:0], np.append(code, code), every, code.astype(np.int32)))


def bombard(method: str, job: Job, count: int, seed: int) -> None:
    """None of so many mutated updates is taken, and each has a reason."""
    server, answer = server_and_answer(method, job)
    before = {name: array.copy() for name, array in server.model.state.items()}
    chance = random.Random(seed)
    for number in range(count):
        mutated = chance.choice((flip, cut, splice, rewrite, rewrite, rewrite))(answer, chance)
        if mutated == answer:
            continue
        updates, rejections = server.check({7: mutated}, job)
        assert updates == [], f"number {number} was accepted"
        assert [bool(rejection.reason) for rejection in rejections] == [True]
    assert all(np.array_equal(server.model.state[name], before[name]) for name in before)
    assert decode_update(answer, server.model.network).device == 7
    assert server.check({7: answer}, job)[1] == []  # what was changed is what is wrong with the others


CASES = [(method, ADJUSTS if method != "fedavg" else PLAIN) for method in METHODS]


@pytest.mark.parametrize(("method", "job"), CASES)
def test_no_mutated_update_is_taken_and_each_has_a_reason(method: str, job: Job) -> None:
    bombard(method, job, 400, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "job"), CASES)
def test_none_of_fifty_thousand_mutated_updates_is_taken(method: str, job: Job) -> None:
    bombard(method, job, 50_000 // len(CASES) + 1, seed=2)
