"""The network as data: it survives JSON, and whatever else comes is refused with a typed error, at once."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmef.errors import NetworkError
from fedmef.sparsity.network import (
    FORMAT,
    INPUT,
    MAXIMUM_BYTES,
    MAXIMUM_ELEMENTS,
    MAXIMUM_OPERATIONS,
    Input,
    Network,
)
from fedmef.sparsity.operations import (
    AdaptiveAveragePool,
    Add,
    ArraySpec,
    BatchNorm,
    Cache,
    Concatenate,
    Flatten,
    Linear,
    MaxPool,
    Normalization,
    Opaque,
    Operation,
    ReLU,
    Shape,
)
from tests.sparsity.cpu_limit import cpu_seconds
from tests.sparsity.networks import (
    chain,
    convolution,
    dense_network,
    images,
    network_of_everything,
    normalized_network,
    pooled,
    sparse_network,
)

NETWORKS = [sparse_network(), dense_network(), normalized_network(), network_of_everything()]
EVERYTHING = network_of_everything().to_json()

Change = Callable[[Any], object]


# What a network says of itself.


def test_shapes_follow_from_the_images_by_hand() -> None:
    assert normalized_network().shapes == {
        "input": (1, 8, 8),
        "first": (8, 8, 8),
        "relu": (8, 8, 8),
        "second": (8, 8, 8),
        "third": (8, 8, 8),
        "sum": (8, 8, 8),
        "pool": (8, 1, 1),
        "features": (8,),
        "classifier": (10,),
    }
    assert normalized_network(7).classes == 7


def test_arrays_are_those_of_all_operations_in_the_order_of_use() -> None:
    network = sparse_network()
    assert {name: (spec.shape, spec.dtype) for name, spec in network.arrays.items()} == {
        "0.values": (None, "float32"),
        "0.mask": ((144,), "uint8"),
        "0.bias": ((16,), "float32"),
        "1.weight": ((16,), "float32"),
        "1.bias": ((16,), "float32"),
        "1.running_mean": ((16,), "float32"),
        "1.running_var": ((16,), "float32"),
        "1.num_batches_tracked": ((), "int64"),
    }
    assert network.floats == tuple(
        name for name in network.arrays if name not in ("0.mask", "1.num_batches_tracked")
    )


def test_layers_are_known_by_their_module() -> None:
    network = network_of_everything()
    assert list(network.layers) == ["stem", "grouped", "h", "classifier"]
    assert list(network.sparse_layers) == ["stem", "grouped"]
    assert network.sparse_layers["grouped"].weight_shape == (8, 2, 3, 3)


def test_a_layer_that_is_used_twice_has_its_arrays_once() -> None:
    once = convolution("c", INPUT, (3, 3, 1, 1), sparse=True)
    network = chain(once, replace(once, name="again", inputs=("c",)), *pooled("again"))
    assert list(network.layers) == ["c"]
    assert list(network.arrays) == ["c.values", "c.mask"]


def test_the_first_opaque_operation_is_named() -> None:
    found = network_of_everything().opaque
    assert found is not None
    assert found.name == "strange"
    assert sparse_network().opaque is None


def test_pixels_become_their_distance_from_the_mean() -> None:
    how = Input((2, 1, 2), mean=(0.5, 0.25), std=(0.5, 0.25))
    pixels = np.array([0, 255, 0, 255], dtype=np.uint8).reshape(1, 2, 1, 2)
    normalized = how.normalize(pixels)
    assert normalized.dtype == np.float32
    np.testing.assert_allclose(normalized.reshape(-1), [-1.0, 1.0, -1.0, 3.0], rtol=1e-6)


@given(values=st.lists(st.integers(0, 255), min_size=12, max_size=12), mean=st.floats(0, 1))
@settings(deadline=None)
def test_normalising_is_the_formula_of_its_docstring(values: list[int], mean: float) -> None:
    how = Input((3, 2, 1), (mean, 0.4, 0.2), (0.3, 0.2, 0.1))
    pixels = np.array(values, dtype=np.uint8).reshape(2, 3, 2, 1)
    expected = (pixels / 255 - np.array(how.mean).reshape(3, 1, 1)) / np.array(how.std).reshape(3, 1, 1)
    np.testing.assert_allclose(how.normalize(pixels), expected, atol=1e-4)


# There and back.


@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_survives_json(network: Network) -> None:
    received = Network.from_json(network.to_json())
    assert received == network
    assert received.shapes == network.shapes
    assert received.arrays == network.arrays
    assert list(received.arrays) == list(network.arrays)
    assert received.to_json() == network.to_json()
    assert received.digest == network.digest


def test_equal_networks_give_equal_bytes_and_one_digest() -> None:
    one, other = network_of_everything(), network_of_everything()
    assert one is not other
    assert one.to_json() == other.to_json()
    assert one.digest == other.digest
    assert len(one.digest) == 32


def test_the_digest_is_the_content_and_not_how_it_is_written() -> None:
    table = json.loads(EVERYTHING)
    spaced = json.dumps(dict(reversed(table.items())), indent=3).encode()
    explicit = json.loads(EVERYTHING)
    explicit["operations"][0]["groups"] = 1  # the default
    for content in (spaced, json.dumps(explicit).encode()):
        assert content != EVERYTHING
        assert Network.from_json(content).digest == network_of_everything().digest


def test_whole_numbers_for_fractions_change_no_digest() -> None:
    """JSON reads them as fractions, and a device compares the digest of what it has read."""
    operations = (ReLU(name="relu6", inputs=(INPUT,), upper=6), *pooled("relu6"))
    network = Network(Input((1, 8, 8), (0,), (1,)), operations)
    received = Network.from_json(network.to_json())
    assert received == network
    assert received.digest == network.digest
    assert received.to_json() == network.to_json()


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table["input"].update(mean=[0.5, 0.5, 0.4]),
        lambda table: table["operations"][0].update(stride=[1, 2], padding=[2, 1]),
        lambda table: table["operations"][0].update(sparse=False, swat=0.0),
        lambda table: table["operations"][0].update(module="other"),
        lambda table: table["operations"][1].update(epsilon=1e-4),
        lambda table: table["operations"][2].pop("upper"),
        lambda table: table["operations"][4]["cache"].update(sparsity=0.8),
        lambda table: table["operations"][4]["normalization"].pop("gamma"),
        lambda table: table["operations"][11].update(epsilon=1e-7),
        lambda table: table["operations"][13].update(factor=0.25),
        lambda table: table["frozen"].pop(),
        lambda table: table["operations"][-1].update(shape=[6, 12]),
    ],
)
def test_every_difference_gives_another_digest(change: Change) -> None:
    assert Network.from_json(changed(change)).digest != network_of_everything().digest


of_sparse_layers = st.fixed_dictionaries(
    {
        "sparse": st.just(True),
        "gain": st.booleans(),
        "normalization": st.none() | st.builds(Normalization, gamma=st.floats(0.1, 9)),
        "cache": st.builds(Cache, st.floats(0, 0.9), st.sampled_from(["fp32", "fp16", "bf16"])),
        "swat": st.floats(0, 0.9),
    }
)


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """Chains with sums and concatenations, of any geometry that fits."""
    shape: Shape = (draw(st.integers(1, 4)), draw(st.integers(3, 9)), draw(st.integers(3, 9)))
    start = Input(
        (shape[0], shape[1], shape[2]),
        tuple(draw(st.floats(0, 1)) for _ in range(shape[0])),
        tuple(draw(st.floats(0.01, 1)) for _ in range(shape[0])),
    )
    operations: list[Operation] = []
    known: dict[str, Shape] = {INPUT: shape}
    source = INPUT
    for number in range(draw(st.integers(0, 8))):
        name = draw(st.sampled_from(["layer", "ü", "a.b", ""])) + str(number)
        operation = draw(drawn(name, source, known))
        operations.append(operation)
        known[name] = operation.output(*(known[taken] for taken in operation.inputs))
        source = name
    operations.append(AdaptiveAveragePool(name="last pool", inputs=(source,)))
    operations.append(Flatten(name="flat", inputs=("last pool",)))
    classes = draw(st.integers(1, 20))
    operations.append(
        Linear(name="logits", inputs=("flat",), module="fc", shape=(classes, known[source][0]), bias=True)
    )
    arrays = [name for operation in operations for name in operation.arrays()]
    frozen = draw(st.lists(st.sampled_from(arrays), unique=True, max_size=3))
    return Network(start, tuple(operations), tuple(frozen))


@st.composite
def drawn(  # noqa: PLR0911
    draw: st.DrawFn, name: str, source: str, known: dict[str, Shape]
) -> Operation:
    shape = known[source]
    same = [other for other, theirs in known.items() if theirs[1:] == shape[1:]]
    kind = draw(st.sampled_from(["convolution", "norm", "relu", "pool", "sum", "concatenate", "opaque"]))
    if kind == "convolution":
        groups = draw(st.sampled_from([1, shape[0]]))
        return convolution(
            name,
            source,
            (groups * draw(st.integers(1, 4)), shape[0] // groups, 3, draw(st.sampled_from([1, 3]))),
            padding=(1, 1),
            groups=groups,
            stride=(draw(st.integers(1, 2)), 1),
            dtype=draw(st.sampled_from(["float32", "float64"])),
            bias=draw(st.booleans()),
            **(draw(of_sparse_layers) if draw(st.booleans()) else {}),
        )
    if kind == "norm":
        return BatchNorm(
            name=name, inputs=(source,), module=name, channels=shape[0], affine=draw(st.booleans())
        )
    if kind == "pool":
        return MaxPool(
            name=name, inputs=(source,), kernel=(2, 2), stride=(1, 1), padding=(1, 1), ceil_mode=True
        )
    if kind == "sum":
        alike = [other for other in same if known[other] == shape]
        return Add(name=name, inputs=(source, draw(st.sampled_from(alike))))
    if kind == "concatenate":
        return Concatenate(name=name, inputs=(source, *draw(st.lists(st.sampled_from(same), max_size=2))))
    if kind == "opaque":
        own = {f"{name}.own": ArraySpec(draw(st.none() | st.just((2, 3))), "float32", "weight")}
        return Opaque(name=name, inputs=(source,), description="∑", shape=shape, own=own)
    return ReLU(name=name, inputs=(source,), upper=draw(st.none() | st.floats(0.1, 9)))


@given(network=networks())
@settings(deadline=None, max_examples=150)
def test_any_network_survives_json(network: Network) -> None:
    content = network.to_json()
    received = Network.from_json(content)
    assert received == network
    assert received.to_json() == content


# Networks that make no sense.


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Input((3, 8, 8), (0.5,), (0.5,) * 3), "1 means, 3 deviations, 3 channels"),
        (lambda: Input((3, 8, 8), (0.5,) * 3, (0.5,) * 2), "3 means, 2 deviations"),
        (lambda: Input((3, 0, 8), (0.5,) * 3, (0.5,) * 3), r"images of shape \[3, 0, 8\]"),
        (lambda: Input((0, 8, 8), (), ()), r"images of shape \[0, 8, 8\]"),
        (lambda: Input((1, 2**20, 2**20), (0.5,), (0.5,)), "images of shape"),
        (lambda: Input((1, 8, 8), (0.5,), (0.0,)), "deviations"),
        (chain, "0 operations"),
        (lambda: chain(convolution("c", INPUT, (4, 3, 3, 3))), "one number for each class"),
        (lambda: Network(images(), pooled(INPUT), frozen=("pool.weight",)), "'pool.weight' is frozen"),
        (lambda: chain(*pooled("nowhere")), "'pool' takes 'nowhere', which is not there before it"),
        (lambda: chain(*reversed(pooled(INPUT))), "'logits' takes 'pool', which is not there before it"),
        (lambda: chain(ReLU(name="a", inputs=("a",)), *pooled("a")), "'a' takes 'a'"),
        (lambda: chain(*pooled(INPUT), *pooled(INPUT)), "two results are called 'pool'"),
        (lambda: chain(ReLU(name=INPUT, inputs=(INPUT,)), *pooled(INPUT)), "two results are called 'input'"),
        (lambda: chain(Opaque(name="o", inputs=(), description="", shape=(0,))), r"'o' gives \[0\]"),
        (
            lambda: chain(Opaque(name="o", inputs=(), description="", shape=(1,) * 10_000)),
            r"'o' gives \[1, 1, 1, 1, 1, 1, 1, 1\]",
        ),
        (
            lambda: chain(AdaptiveAveragePool(name="a", inputs=(INPUT,), size=(2**20, 2**20)), *pooled("a")),
            "'a' gives",
        ),
        (
            lambda: chain(convolution("c", INPUT, (2**32, 3, 1, 1)), *pooled("c")),
            "'c' gives",
        ),
        (
            lambda: chain(*pooled(INPUT), classifier("fc", 3, MAXIMUM_ELEMENTS)),
            r"'fc.weight' is of shape \[2147483648, 3\]",
        ),
        (
            lambda: chain(*pooled(INPUT), classifier("fc", 3, MAXIMUM_ELEMENTS, sparse=True)),
            "'fc' has 6442450944 weights",
        ),
        (
            lambda: chain(
                Opaque(
                    name="o",
                    inputs=(),
                    description="",
                    shape=(2,),
                    own={"large": ArraySpec((2**16, 2**16), "uint8", "weight")},
                )
            ),
            "'large' is of shape",
        ),
        (lambda: chain(*twice({"bias": True}, {"bias": True, "dtype": "float64"})), "'m.weight' differently"),
        (lambda: chain(*twice({"sparse": True}, {})), "use 'm' differently"),
        (lambda: chain(*twice({"sparse": True}, {"sparse": True, "gain": True})), "use 'm' differently"),
        (
            # As many weights, so that no array tells; but which is the layer's shape?
            lambda: chain(
                *pooled(INPUT),
                Linear(name="a", inputs=("logits",), module="m", shape=(4, 3), sparse=True),
                Linear(name="b", inputs=("a",), module="m", shape=(3, 4), sparse=True),
            ),
            "use 'm' differently",
        ),
        (
            lambda: chain(
                BatchNorm(name="a", inputs=(INPUT,), module="m", channels=3, affine=False),
                convolution("m", "a", (3, 3, 1, 1)),
                *pooled("m"),
            ),
            "use 'm' differently",
        ),
        (lambda: nested("m", "m.n"), "the module 'm.n' cannot be inside of 'm'"),
        (lambda: nested("m.n.o", "m"), "the module 'm.n.o' cannot be inside of 'm'"),
        (lambda: nested("m", "m.weight"), "the module 'm.weight' cannot be inside of 'm'"),
    ],
)
def test_a_network_that_makes_no_sense_is_refused(make: Callable[[], object], reason: str) -> None:
    with pytest.raises(NetworkError, match=reason):
        make()


def classifier(name: str, features: int, classes: int, **rest: Any) -> Linear:
    return Linear(name=name, inputs=("logits",), module=name, shape=(classes, features), **rest)


def twice(first: dict[str, Any], second: dict[str, Any]) -> list[Operation]:
    """One module, used in two ways."""
    return [
        replace(convolution("a", INPUT, (3, 3, 1, 1), **first), module="m"),
        replace(convolution("b", "a", (3, 3, 1, 1), **second), module="m"),
        *pooled("b"),
    ]


def nested(first: str, second: str) -> Network:
    """Two layers whose modules have these names."""
    return chain(
        replace(convolution("a", INPUT, (3, 3, 1, 1)), module=first),
        replace(convolution("b", "a", (3, 3, 1, 1)), module=second),
        *pooled("b"),
    )


@pytest.mark.parametrize(("first", "second"), [("m.a", "m.b"), ("m", "mn"), ("m", "m_.n"), ("m.n", "n.m")])
def test_modules_may_stand_side_by_side(first: str, second: str) -> None:
    assert list(nested(first, second).layers) == [first, second]


# JSON that is not a network.


def changed(change: Change) -> bytes:
    table = json.loads(EVERYTHING)
    change(table)
    return json.dumps(table).encode()


def refused(content: bytes) -> str:
    with pytest.raises(NetworkError) as refusal:
        Network.from_json(content)
    message = str(refusal.value)
    message.encode()  # it can be printed
    assert len(message) < 1500
    return message


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"network",
        b"null",
        b"3",
        b"[]",
        b'"network"',
        b"{}",
        b"\xff\xfe\x00",
        b"\x80",
        EVERYTHING[:-1],
        EVERYTHING[1:],
        EVERYTHING + EVERYTHING,
        b"[" * 200_000,
        b"[" * 200_000 + b"]" * 200_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"format": 1, "input": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b"1" * 500_000,  # Python refuses numbers of so many digits
        EVERYTHING + b" " * MAXIMUM_BYTES,
    ],
    ids=lambda content: ascii(content[:12]),
)
def test_what_is_not_json_or_not_a_table_is_refused(content: bytes) -> None:
    refused(content)


def test_the_largest_content_is_refused_before_it_is_read() -> None:
    assert f"{MAXIMUM_BYTES + 1} bytes" in refused(b"[" * (MAXIMUM_BYTES + 1))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda table: table.update(format=FORMAT + 1), "not a network of format 1"),
        (lambda table: table.update(format="1"), "not a network of format 1"),
        (lambda table: table.pop("format"), "not a network of format 1"),
        (lambda table: table.pop("input"), "has input, operations and frozen"),
        (lambda table: table.pop("operations"), "has input, operations and frozen"),
        (lambda table: table.pop("frozen"), "has input, operations and frozen"),
        (lambda table: table.update(more=1), "and nothing else"),
        (lambda table: table.update(input=[3, 8, 8]), "Input must be a table"),
        (lambda table: table["input"].pop("std"), "Input lacks one of std"),
        (lambda table: table["input"].update(scale=1), "Input has no 'scale'"),
        (lambda table: table["input"].update(std=[1, 0, 1]), "deviations"),
        (lambda table: table["input"].update(mean=[1, float("nan"), 1]), "Input.mean cannot be nan"),
        (lambda table: table["input"].update(mean=[1, float("inf"), 1]), "Input.mean cannot be inf"),
        (lambda table: table["input"].update(mean=[1, 10**400, 1]), "Input.mean cannot be 1000"),
        (lambda table: table["input"].update(shape=[3, 16]), "Input.shape"),
        (lambda table: table["input"].update(shape=[3, 16, -1]), "Input.shape"),
        (lambda table: table["input"].update(shape=[3, 16, True]), "Input.shape"),
        (lambda table: table["input"].update(shape=[3, 2**53, 2**53]), "images of shape"),
        (lambda table: table.update(frozen="stem.values"), "frozen cannot be 'stem.values'"),
        (lambda table: table.update(frozen=[1]), "frozen cannot be 1"),
        (lambda table: table.update(frozen=[["stem.values"]]), "frozen cannot be a list"),
        (lambda table: table.update(frozen=["x" * 100_000]), "frozen cannot be 'xxx"),
        (lambda table: table.update(frozen=["stem.weight"]), "'stem.weight' is frozen"),
        (lambda table: table.update(operations={}), "must be a list"),
        (lambda table: table.update(operations=[]), "0 operations"),
        (lambda table: table.update(operations=[1]), "must be a table, and have a kind"),
        (
            lambda table: table.update(operations=[{}] * (MAXIMUM_OPERATIONS + 1)),
            "list of at most 10000",
        ),
        (lambda table: table["operations"][0].pop("kind"), "have a kind"),
        (lambda table: table["operations"][0].update(kind=["relu"]), "have a kind"),
        (lambda table: table["operations"][0].update(kind="softmax"), "no operation of kind 'softmax'"),
        (lambda table: table["operations"][0].update(kind="\ud800" * 100), "no operation of kind"),
        (lambda table: table["operations"][0].update(kind="__class__"), "no operation of kind '__class__'"),
        (lambda table: table["operations"][0].update(kind="linear"), "Linear has no 'padding'"),
        (lambda table: table["operations"][0].pop("name"), "Convolution lacks one of"),
        (lambda table: table["operations"][0].pop("shape"), "Convolution lacks one of"),
        (lambda table: table["operations"][0].update(colour="red"), "Convolution has no 'colour'"),
        (lambda table: table["operations"][0].update(name=""), "takes 'stem', which is not there"),
        (lambda table: table["operations"][0].update(name=7), "Convolution.name cannot be 7"),
        (lambda table: table["operations"][0].update(name="\udc00"), "Convolution.name cannot be"),
        (lambda table: table["operations"][0].update(name="x" * 1001), "Convolution.name cannot be"),
        (lambda table: table["operations"][0].update(inputs="input"), "Convolution.inputs cannot be 'input'"),
        (lambda table: table["operations"][0].update(inputs=[]), "takes one input of 3 dimensions"),
        (lambda table: table["operations"][0].update(inputs=["norm"]), "not there before it"),
        (lambda table: table["operations"][0].update(inputs=["input"] * 10_001), "inputs cannot be a list"),
        (lambda table: table["operations"][0].update(stride=1), "Convolution.stride"),
        (lambda table: table["operations"][0].update(stride=[0, 1]), "must be at least 1"),
        (lambda table: table["operations"][0].update(padding=[2**53, 2**53]), "'stem' gives"),
        (lambda table: table["operations"][0].update(padding=[2**53 + 1, 1]), "Convolution.padding"),
        (lambda table: table["operations"][0].update(dilation=[2**53, 1]), "smaller than its window"),
        (lambda table: table["operations"][0].update(shape=[2**53, 3, 3, 3]), "'stem' gives"),
        (lambda table: table["operations"][0].update(shape=[8, 3, 3, 3, 1]), "Convolution.shape"),
        (lambda table: table["operations"][0].update(sparse=1), "Convolution.sparse cannot be 1"),
        (lambda table: table["operations"][0].update(dtype="float16"), "Convolution.dtype"),
        (lambda table: table["operations"][1].update(epsilon="1e-5"), "BatchNorm.epsilon"),
        (
            lambda table: table["operations"][1].update(epsilon=float("nan")),
            "BatchNorm.epsilon cannot be nan",
        ),
        (lambda table: table["operations"][1].update(channels=9), "takes 9 channels"),
        (lambda table: table["operations"][1].update(epsilon=-1), "an epsilon of -1 and a momentum of 0.5"),
        (lambda table: table["operations"][1].update(momentum=2), "an epsilon of 0.001 and a momentum of 2"),
        (lambda table: table["operations"][4].update(sparse=False), "only a sparse layer has a gain"),
        (lambda table: table["operations"][0].update(swat=1), "swat is a share"),
        (lambda table: table["operations"][12].update(swat=0.5), "only a sparse layer has"),
        (lambda table: table["operations"][12].update(swat=0.5, sparse=True), "swat is a share, and of a"),
        (lambda table: table["operations"][11].update(epsilon=0), "a positive epsilon"),
        (lambda table: table["operations"][13].update(factor=-1), "a positive factor"),
        (lambda table: table["operations"][13].pop("factor"), "Scale lacks one of"),
        (lambda table: table["operations"][4].update(module="stem.a"), "cannot be inside of 'stem'"),
        (lambda table: table["operations"][4].update(cache=None), "Cache must be a table"),
        (lambda table: table["operations"][4]["cache"].update(dtype="int8"), "Cache.dtype"),
        (lambda table: table["operations"][4]["cache"].update(sparsity=[]), "Cache.sparsity"),
        (lambda table: table["operations"][4]["normalization"].update(scaling="mine"), "scaling"),
        (lambda table: table["operations"][4].update(groups=0), "0 groups"),
        (lambda table: table["operations"][8].update(own=[]), "Opaque.own"),
        (lambda table: table["operations"][8]["own"].update({"strange.running_mean": {}}), "ArraySpec lacks"),
        (
            lambda table: table["operations"][8]["own"]["strange.running_mean"].update(role="secret"),
            "ArraySpec.role",
        ),
        (
            lambda table: table["operations"][8]["own"].update({"norm.weight": spec([9])}),
            "two operations use 'norm.weight' differently",
        ),
        (lambda table: table["operations"][8].update(shape=[1] * 9), "'strange' gives"),
        (lambda table: table["operations"].append(table["operations"][0]), "two results are called 'stem'"),
        (lambda table: table["operations"].reverse(), "not there before it"),
        (lambda table: table["operations"].pop(0), "not there before it"),
    ],
)
def test_damage_of_every_kind_is_named(change: Change, reason: str) -> None:
    assert reason in refused(changed(change))


def test_a_network_without_its_last_operation_is_another_network() -> None:
    shorter = Network.from_json(changed(lambda table: table["operations"].pop()))
    assert shorter.classes == 12
    assert shorter.digest != network_of_everything().digest


def spec(shape: list[int]) -> dict[str, object]:
    return {"shape": shape, "dtype": "float32", "role": "weight"}


def test_every_missing_field_of_every_operation_is_noticed_or_has_a_default() -> None:
    table = json.loads(EVERYTHING)
    for number, operation in enumerate(table["operations"]):
        for name in ("name", "inputs", "kind"):
            less = {key: value for key, value in operation.items() if key != name}
            others = [*table["operations"][:number], less, *table["operations"][number + 1 :]]
            refused(json.dumps({**table, "operations": others}).encode())


# JSON that somebody or something has changed.


VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    2,
    7,
    2**31,
    2**53,
    2**64,
    10**400,
    0.5,
    -1e300,
    float("nan"),
    float("inf"),
    "",
    "input",
    "x" * 2000,
    "\ud800",
    [],
    [[]],
    [1, 1],
    ["input"],
    {},
    {"kind": "relu"},
)


def nodes(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a JSON document: a container, and a key or index of it."""
    found: list[tuple[Any, Any]] = []
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    for key in keys:
        found.append((value, key))
        found += nodes(value[key])
    return found


def mutate(content: bytes, chance: random.Random) -> bytes:
    """The document with one or a few of its places changed, or a few of its bytes."""
    if chance.random() < 0.2:
        damaged = bytearray(content)
        for _ in range(chance.choice((1, 2, 5))):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        return bytes(damaged)
    table = json.loads(content)
    for _ in range(chance.choice((1, 1, 2, 4))):
        places = nodes(table)
        if not places:
            break
        container, key = chance.choice(places)
        what = chance.random()
        if what < 0.6:
            container[key] = chance.choice(VALUES)
        elif what < 0.7:
            del container[key]
        elif what < 0.85:  # something that belongs elsewhere
            other, from_there = chance.choice(places)
            if from_there in other if isinstance(other, dict) else from_there < len(other):
                container[key] = json.loads(json.dumps(other[from_there]))
        elif isinstance(container, list):
            container.insert(key, json.loads(json.dumps(container[key])))
        else:
            container[str(chance.choice(VALUES))] = container[key]
    return json.dumps(table).encode()


def test_changed_documents_give_a_network_or_a_typed_error() -> None:
    """A network is either refused, or it is one: it has shapes and arrays, and writes itself."""
    chance = random.Random(0)
    documents = [network.to_json() for network in NETWORKS]
    accepted, rejected = 0, 0
    for _ in range(6000):
        content = mutate(chance.choice(documents), chance)
        try:
            with cpu_seconds(2):
                network = Network.from_json(content)
        except NetworkError:
            rejected += 1
            continue
        accepted += 1
        assert Network.from_json(network.to_json()) == network
        assert network.classes >= 1
        assert all(layer.size == layer.filters * layer.filter_size for layer in network.layers.values())
        assert set(network.floats) <= network.arrays.keys()
    assert rejected > 3000
    assert accepted > 100


def heavy() -> dict[str, bytes]:
    """Documents of a megabyte that are as much work as such a document can be."""
    head = b'{"format":1,"frozen":[],"input":{"shape":[1,8,8],"mean":[0.5],"std":[0.5]},"operations":['
    many = b",".join(
        b'{"kind":"relu","name":"%d","inputs":["%s"]}'
        % (number, b"%d" % (number - 1) if number else b"input")
        for number in range(MAXIMUM_OPERATIONS)
    )
    lines = [
        b'{"kind":"opaque","name":"o","inputs":[],"description":"","shape":[%s]}' % (b"1," * 9_999 + b"1")
    ]
    lines += [
        b'{"kind":"concatenate","name":"c%d","inputs":[%s]}' % (number, b",".join([b'"o"'] * 9_999))
        for number in range(24)
    ]
    numbers = b",".join([b"9007199254740992"] * 10_000)
    large = b",".join(
        b'{"kind":"opaque","name":"o%d","inputs":[],"description":"","shape":[%s]}' % (number, numbers)
        for number in range(5)
    )
    return {
        "many operations": head + many + b"]}",
        "many inputs of many dimensions": head + b",".join(lines) + b"]}",
        "products of large numbers": head + large + b"]}",
        "many frozen": head.replace(b"[]", b"[" + b",".join([b'"a"'] * 200_000) + b"]", 1) + b"]}",
    }


@pytest.mark.parametrize("name", heavy())
def test_a_megabyte_of_malice_takes_no_time(name: str) -> None:
    content = heavy()[name]
    assert 100_000 < len(content) <= MAXIMUM_BYTES
    with cpu_seconds(10):
        refused(content)
