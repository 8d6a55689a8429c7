"""What can be wrong with a network, with its state, with a batch or with an instruction."""

import copy
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.random import Generator

from fedmef.errors import NetworkError
from fedmef.methods.extrusion import Pull
from fedmef.native.plan import Instruction, Plan
from fedmef.sparsity.arrays import Array
from fedmef.sparsity.model import State
from fedmef.sparsity.network import INPUT, Network
from fedmef.sparsity.operations import OPERATIONS
from fedmef.sparsity.reading import read_fields

Table = dict[str, Any]

FIELDS: Table = {  # what an operation may have that it has not
    "sparse": [True, False],
    "gain": [True],
    "bias": [True],
    "normalization": [{"scaling": "paper", "input_channels": 3}, {"epsilon": 1e-30}, None],
    "cache": [{"sparsity": 0.9}, {"sparsity": 0.5, "dtype": "fp16"}, {"sparsity": 0.999999, "dtype": "bf16"}],
    "groups": [1, 2, 3, 4, 8],
    "stride": [[1, 1], [2, 1], [3, 3], [1, 9], [30, 30], [1000, 1000]],
    "padding": [[0, 0], [1, 1], [0, 2], [5, 1], [40, 40], [4096, 4096]],
    "dilation": [[1, 1], [2, 1], [1, 3], [30, 1], [100, 100]],
    "kernel": [[1, 1], [2, 2], [3, 1], [1, 5], [17, 16]],
    "size": [[1, 1], [2, 3], [9, 9], [100, 100]],
    "upper": [None, 0.0, 1e-30, 6.0, -1.0],
    "factor": [2.0, 1e-30, 1e30],
    "epsilon": [0.0, 1e-30, 1e30],
    "momentum": [0.0, 1.0],
    "ceil_mode": [True, False],
    "count_padding": [True, False],
    "divisor": [1, 3, 2**31, None],
    "affine": [True, False],
    "compact": [True, False],
    "swat": [0.5],
    "dtype": ["float64", "float32"],
    "module": ["a", "conv1", "x.y"],
}
SMALL_INTEGERS = [0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 30]
INTEGERS = [-1, 255, 257, 1000, 4096, 65536, 2**24, 2**31 - 1, 2**31, 2**32 + 1, 2**53, 2**60, 1.5, "1", None]
FRACTIONS = [0.0, -1.0, 0.5, 0.999999, 1.0, 1e-30, 1e-45, 1e37, 9.9e37, 1e300, 3, None]
FLOATS = [np.nan, np.inf, -np.inf, 1e38, -1e38, 1e-45, 0.0]
KINDS = ["update", "score", "relu", "run", "prune", "transpose", "convolve_relu", "input_gradient_relu"]
BATCHES = [0, 1, 2, 3, 7, 8, 9, 16, 17]


def mutated_network(table: Table, random: Generator) -> Table:
    """One to three changes, mostly followed by an attempt to make shapes fit again."""
    table = copy.deepcopy(table)
    for _ in range(random.integers(1, 3)):
        changes = [
            _change_leaf,
            _change_leaf,
            _add_field,
            _add_field,
            _move_operation,
            _change_names,
            _freeze,
        ]
        changes[random.integers(len(changes))](table, random)
    if random.random() < 0.8:
        repair(table)
    return table


def mutated_state(state: State, random: Generator) -> State:
    """Arrays of other types, shapes, content, or names."""
    state = {name: array.copy() for name, array in state.items()}
    for _ in range(random.integers(1, 3)):
        if not state:
            break
        name = _one(random, list(state))
        array, kind = state[name], random.integers(9)
        if kind == 0:
            del state[name]
        elif kind == 1:
            state[name + "2"] = array
        elif kind == 2:
            state[name] = array.astype(_one(random, ["f2", "f4", "f8", ">f4", "i8", "u1", "u2", "?"]))
        elif kind == 3:
            state[name] = array.reshape(-1)[: random.integers(array.size + 1)]
        elif kind == 4:
            state[name] = _one(
                random, [array[None], np.repeat(array, 2), array.reshape(-1, 1), array.reshape(1, -1).T]
            )
        elif kind == 5:
            state[name] = np.repeat(array.reshape(-1), 2)[::2].reshape(array.shape)  # not contiguous
        elif array.size:
            _overwrite(array, random)
    return state


def mutated_mask(state: State, random: Generator) -> State:
    """A mask with as many ones as before: fits, and the layer looks quite different."""
    masks = [name for name in state if name.endswith(".mask")]
    if not masks:
        return state
    name = _one(random, masks)
    return {**state, name: random.permutation(state[name])}


def batch(network: Network, random: Generator) -> tuple[Array, Array]:
    """Images and labels, of which about a fifth does not fit."""
    count = int(_one(random, BATCHES))
    shape: tuple[int, ...] = (count, *network.input.shape)
    images = random.integers(0, 256, shape, dtype=np.uint8)
    labels = random.integers(0, network.classes, count)
    kind = random.integers(40)
    if kind == 0:
        images = images.astype(_one(random, [np.float32, np.int8, np.int64]))
    elif kind == 1:
        images = _one(
            random, [images[0:0], images[..., 1:], images.swapaxes(1, 3), images.reshape(-1), images[:, :0]]
        )
    elif kind == 2:
        images = np.repeat(images, 2, axis=3)[..., ::2]
    elif kind == 3 and count:
        labels[random.integers(count)] = _one(random, [-1, network.classes, 2**31, 2**63 - 1, -(2**63)])
    elif kind == 4:
        labels = _one(random, [labels[1:], np.append(labels, 0), labels[None], labels.astype(np.float32)])
    elif kind == 5:
        labels = labels.astype(_one(random, [np.uint8, np.int32, np.uint64, ">i8"]))
    return images, labels


def pull(network: Network, state: State, random: Generator) -> Pull | None:
    """Marked weights, of which some are not there."""
    if random.random() < 0.5:
        return None
    marked: dict[str, Any] = {}
    for name in network.sparse_layers:
        count = state[f"{name}.values"].size if f"{name}.values" in state else 3
        places = random.integers(0, max(1, count), random.integers(0, 5))
        if random.random() < 0.1:
            wrong = [places - 1, places + count, places.astype(float), places[None], np.array([2**63 - 1])]
            places = _one(random, [*wrong, np.array([-(2**63)]), np.repeat(places, 2)[::2], np.array(3)])
        marked[name] = places
    if random.random() < 0.05:
        marked["nobody"] = np.zeros(1, dtype=np.int64)
    return Pull(marked, float(_one(random, [0.0, 0.1, 1e38, np.nan, -1.0])))


def counts(network: Network, random: Generator) -> dict[str, int]:
    """How many weights each layer shall grow."""
    found = {name: int(_one(random, [0, 1, 5, 10**6, -1, -(2**70), 2**70])) for name in network.sparse_layers}
    if random.random() < 0.05:
        found["nobody"] = 1
    return {name: count for name, count in found.items() if random.random() < 0.8}


def mutated_plan(plan: Plan, random: Generator) -> Plan:
    """Instructions with other numbers, other orders, or in other buffers."""
    instructions, sizes, offsets = list(plan.instructions), list(plan.sizes), list(plan.offsets)
    for _ in range(random.integers(1, 4)):
        place = int(random.integers(len(instructions)))
        kind = random.integers(9)
        if kind == 0:
            del instructions[place]
        elif kind == 1:
            instructions.insert(int(random.integers(len(instructions))), instructions[place])
        elif kind == 2:
            other = int(random.integers(len(instructions)))
            instructions[place], instructions[other] = instructions[other], instructions[place]
        elif kind == 3:
            number = int(random.integers(len(sizes)))
            sizes[number] = int(
                _one(random, [0, sizes[number] - 4, sizes[number] * 2, 64, 2**62, 2**64 - 1, -1])
            )
        elif kind == 4:
            number = int(random.integers(len(sizes)))
            offsets[number] = int(_one(random, [0, 64, offsets[number] + 4, plan.arena, 2**64 - 64, -64]))
        else:
            instructions[place] = _mutated_instruction(instructions[place], len(sizes), random)
        if not instructions:
            break
    return replace(plan, instructions=tuple(instructions), sizes=tuple(sizes), offsets=tuple(offsets))


def mutated_arguments(arguments: list[Any], random: Generator) -> list[Any]:
    """The arguments of a call of the extension, of which one is another."""
    arguments = list(arguments)
    place = int(random.integers(len(arguments)))
    arguments[place] = _other_value(arguments[place], random)
    return arguments


def _mutated_instruction(instruction: Instruction, buffers: int, random: Generator) -> Instruction:
    names = [*instruction.buffers, *instruction.options]
    if not names or random.random() < 0.05:
        return replace(instruction, kind=_one(random, KINDS))
    name = _one(random, names)
    if name in instruction.buffers:
        number = int(random.choice([*range(buffers), -1, -2, buffers, 2**31 - 1, 2**31]))
        return replace(instruction, buffers={**instruction.buffers, name: number})
    return replace(
        instruction, options={**instruction.options, name: _other_value(instruction.options[name], random)}
    )


def _other_value(value: Any, random: Generator) -> Any:  # noqa: PLR0911
    if isinstance(value, tuple | list) and value:
        place = int(random.integers(len(value)))
        return (*value[:place], _other_value(value[place], random), *value[place + 1 :])
    if isinstance(value, np.ndarray):
        return _one(random, [value[1:], np.repeat(value, 2), value.astype(np.float64), value[None], None])
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return _one(random, [*FLOATS, None, "1"])
    if isinstance(value, str):
        return _one(
            random, ["", "conv1", "conv2", "norm", "classifier", "fp16", "maximum", "average", "x" * 999]
        )
    if isinstance(value, int):
        near = [value - 1, value + 1, 2 * value, value // 2, -value]
        return _one(random, [*SMALL_INTEGERS, *near, *near, *INTEGERS, 2**63, 2**64 - 1, 2**64])
    return _one(random, [None, 1, "x", (1, 2)])


def _change_leaf(table: Table, random: Generator) -> None:
    leaves = list(_leaves(table))
    if random.random() < 0.9:  # names, changed at random, hardly ever lead further
        leaves = [(holder, key) for holder, key in leaves[1:] if not isinstance(holder[key], str)]
    holder, key = _one(random, leaves)
    value = holder[key]
    if isinstance(value, bool):
        holder[key] = not value
    elif isinstance(value, int):
        near = [value + 1, max(0, value - 1), 2 * value]
        holder[key] = _one(random, SMALL_INTEGERS + near if random.random() < 0.85 else INTEGERS)
    elif isinstance(value, float):
        holder[key] = _one(random, FRACTIONS)
    elif isinstance(value, str):
        holder[key] = _one(random, [held[at] for held, at in _leaves(table) if isinstance(held[at], str)])
    if random.random() < 0.05 and isinstance(holder, list):
        _one(random, [holder.reverse, holder.pop, holder.clear, lambda: holder.append(1)])()


def _add_field(table: Table, random: Generator) -> None:
    """Give an operation a field; mostly one that it may have."""
    operation = _one(random, table["operations"])
    kind = OPERATIONS.get(operation["kind"])
    own = [name for name in FIELDS if kind and name in kind.__dataclass_fields__]
    name = _one(random, own) if own and random.random() < 0.95 else _one(random, list(FIELDS))
    operation[name] = copy.deepcopy(_one(random, FIELDS[name]))
    if operation["kind"] == "convolution" and random.random() < 0.2:
        operation["shape"] = [*operation["shape"][:2], *_one(random, FIELDS["kernel"])]
    if name in ("gain", "normalization", "cache") and random.random() < 0.9:
        operation["sparse"] = True


def _move_operation(table: Table, random: Generator) -> None:
    operations = table["operations"]
    place, other = (int(random.integers(len(operations))) for _ in range(2))
    kind = random.integers(8)
    if kind < 2 and len(operations) > 1:
        gone = operations.pop(place)
        for reader in operations:
            reader["inputs"] = [
                gone["inputs"][0] if name == gone["name"] else name for name in reader["inputs"]
            ]
    elif kind == 3:
        operations[place], operations[other] = operations[other], operations[place]
    elif kind == 4:
        operations.insert(other, copy.deepcopy(operations[place]))
    else:  # between an operation and its readers
        result = operations[place]["name"]
        steps = [
            {"kind": "relu"}, {"kind": "flatten"}, {"kind": "layer_norm"}, {"kind": "scale", "factor": 0.5},
            {"kind": "batch_norm", "module": "new", "channels": 1},
            {"kind": "max_pool", "kernel": [2, 2], "stride": [1, 1], "padding": [1, 1], "dilation": [3, 2]},
            {"kind": "linear", "module": "new", "shape": [4, 4], "sparse": True, "cache": {"sparsity": 0.3}},
        ]  # fmt: skip
        for reader in operations[place + 1 :]:
            reader["inputs"] = ["new" if name == result else name for name in reader["inputs"]]
        operations.insert(place + 1, {**_one(random, steps), "name": "new", "inputs": [result]})


def _change_names(table: Table, random: Generator) -> None:
    operations = table["operations"]
    place = int(random.integers(len(operations)))
    names = [INPUT, *(operation["name"] for operation in operations), "nobody"]
    earlier = names[: 1 + place] if random.random() < 0.9 else names
    operations[place]["inputs"] = [_one(random, earlier) for _ in operations[place]["inputs"]]


def _freeze(table: Table, random: Generator) -> None:
    operation = _one(random, table["operations"])
    kinds = ["weight", "values", "gain", "bias", "mask", "running_mean"]
    if random.random() < 0.9:
        kinds = ["values" if operation.get("sparse") else "weight"]
        kinds += [kind for kind in ("gain", "bias") if operation.get(kind)]
    table["frozen"] = [
        f"{operation.get('module', 'conv1')}.{kind}" for kind in kinds if random.random() < 0.7
    ]


def repair(table: Table) -> None:
    """Let layers take what comes, as far as that makes sense."""
    shapes: dict[str, Any] = {INPUT: tuple(table["input"]["shape"])}
    for operation in table["operations"]:
        sources: list[Any] = [shapes.get(name) for name in operation["inputs"]]
        if not all(sources) or not sources or not all(isinstance(side, int) for side in sources[0]):
            return
        if operation["kind"] in ("add", "concatenate"):
            fits = [
                name for name in operation["inputs"] if shapes[name][1:] == shapes[operation["inputs"][0]][1:]
            ]
            if operation["kind"] == "add" and len(set(sources)) > 1:
                fits = operation["inputs"][:1] * 2
            operation["inputs"], sources = fits, [shapes[name] for name in fits]
        source = sources[0]
        shape = operation.get("shape")  # not of a kind that the operation had before
        if operation["kind"] == "linear" and isinstance(shape, list) and shape:
            operation["shape"] = [shape[0], math.prod(source)]
        elif operation["kind"] == "batch_norm":
            operation["channels"] = source[0]
        elif operation["kind"] == "convolution" and isinstance(shape, list):
            groups = operation.get("groups", 1)
            shape[1:2] = [source[0] // groups] if groups in range(1, source[0] + 1) else shape[1:2]
        try:
            settings = {name: value for name, value in operation.items() if name != "kind"}
            shapes[operation["name"]] = read_fields(OPERATIONS[operation["kind"]], settings).output(*sources)
        except (NetworkError, KeyError, TypeError, IndexError):
            return


def _overwrite(array: Array, random: Generator) -> None:
    """Some elements become others."""
    places = random.integers(0, array.size, random.integers(1, 4))
    if array.dtype.kind == "f":
        array.reshape(-1)[places] = random.choice(FLOATS, places.size)
    elif array.dtype == np.int64:
        array[...] = _one(random, [-1, 2**63 - 1, -(2**63)])
    elif array.dtype == np.uint8:
        array.reshape(-1)[places] = random.integers(0, 256, places.size)


def _leaves(table: Any) -> Iterator[tuple[Any, Any]]:
    """Where everything is that has no parts."""
    for key in list(table) if isinstance(table, dict) else range(len(table)):
        if isinstance(table[key], dict | list):
            yield from _leaves(table[key])
        else:
            yield table, key


def _one(random: Generator, choices: Any) -> Any:
    """As it is: NumPy's own choice makes arrays and NumPy's scalars of it."""
    return choices[random.integers(len(choices))]
