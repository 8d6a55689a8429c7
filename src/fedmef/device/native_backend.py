"""The native backend: our own kernels (csrc/), on a CPU. Only active weights are computed with.

A batch of every size gets a plan of its own, made when it first comes: instructions, and one arena for all
results (`fedmef.native.lowering`). The extension executes it without calling back.
"""

import math
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import numpy as np

from fedmef.device.backend import PLAIN, Descent, Step
from fedmef.errors import NetworkError, OutOfMemoryError, UserError
from fedmef.methods.extrusion import Pull
from fedmef.native import _kernels
from fedmef.native.assembly import assemble, open_runtime
from fedmef.native.forward import Mode
from fedmef.native.lowering import lower
from fedmef.native.plan import Instruction, Layout, Plan
from fedmef.sparsity.arrays import Array, Bits, Bytes, Floats, Integers, Places
from fedmef.sparsity.growth import GrowthScores
from fedmef.sparsity.masks import unpack_bits
from fedmef.sparsity.model import State, check_state
from fedmef.sparsity.network import Network
from fedmef.sparsity.operations import BatchNorm, Layer
from fedmef.wire.job import CROSS_ENTROPY

INSTRUCTIONS = "FEDMEF_INSTRUCTIONS"  # an environment variable: the instruction set, instead of the fastest
MOST_PREDICTED = 64  # images at once: more take more memory, and little time less


class NativeBackend:
    """A network as programs of the extension.

    Args:
        network: what to execute.
        threads: they change no result.
        instructions: avx512, avx2, neon or baseline; by default what the environment says, or the fastest.
        inspect: let `bits` and `gradients` look at what the last step left; for tests.
    """

    def __init__(
        self,
        network: Network,
        threads: int = 1,
        instructions: str | None = None,
        *,
        inspect: bool = False,
    ) -> None:
        self.network = network
        self.loss = CROSS_ENTROPY
        self._inspect = inspect
        self._runtime = open_runtime(network, threads, _instructions(instructions))
        self._programs: dict[tuple[Mode, int, frozenset[str]], tuple[Plan, _kernels.Program]] = {}
        self._marked: Mapping[str, Places] | None = None
        self._last: tuple[Plan, _kernels.Program] | None = None
        self._anchor: State | None = None

    @property
    def instructions(self) -> str:
        """The instruction set in use."""
        return self._runtime.instructions

    @property
    def threads(self) -> int:
        """How many threads work on one batch."""
        return self._runtime.threads

    def load(self, state: Mapping[str, Array], seed: int = 0) -> None:
        check_state(self.network, state)
        self._marked = self._anchor = None
        self._load(state)

    def _load(self, state: Mapping[str, Array]) -> None:
        arrays = {name: np.ascontiguousarray(array) for name, array in state.items()}
        for operation in self.network.operations:
            if isinstance(operation, Layer | BatchNorm):
                try:
                    _load(self._runtime, operation, arrays)
                except ValueError as error:
                    raise NetworkError(
                        f"the native kernels refuse the state of {operation.module}: {error}"
                    ) from None
                except MemoryError:
                    raise OutOfMemoryError(f"there is not enough memory for {operation.module}") from None

    def state(self, names: Collection[str] | None = None) -> State:
        state: State = {}
        for operation in self.network.operations:
            if isinstance(operation, Layer | BatchNorm):
                own = operation.arrays().keys()
                if names is None or not own.isdisjoint(names):
                    state |= _stored(self._runtime, operation)
        return {name: state[name] for name in (self.network.arrays if names is None else names)}

    def step(
        self, images: Array, labels: Array, rate: float, pull: Pull | None = None, descent: Descent = PLAIN
    ) -> Step:
        if descent.proximal:
            return self._proximal_step(images, labels, rate, pull, descent)
        marked = {} if pull is None else pull.marked
        self._mark(marked)
        images, labels = self._images(images), _labels(labels)
        self._last = self._program("train", len(images))
        strength = 0.0 if pull is None else pull.strength
        loss = self._run(self._last[1], images, labels, rate, strength, descent)
        return Step(loss, math.sqrt(sum(self._runtime.marked_squares(name) for name in marked)))

    def _proximal_step(
        self, images: Array, labels: Array, rate: float, pull: Pull | None, descent: Descent
    ) -> Step:
        """FedProx's term is not in the kernels: it is added to what their step gave."""
        if descent.momentum:
            raise UserError("proximal and momentum: the native kernels have not both; use backend = 'torch'")
        weights = [name for name, spec in self.network.arrays.items() if spec.role == "weight"]
        before = {name: array.copy() for name, array in self.state(weights).items()}
        if self._anchor is None:
            self._anchor = before
        done = self.step(images, labels, rate, pull, replace(descent, proximal=0.0))
        after = self.state()
        factor = np.float32(rate * descent.proximal)
        for name, array in before.items():
            after[name] = after[name] - factor * (array - self._anchor[name])
        self._marked = None
        self._load(after)
        marked = {} if pull is None else pull.marked
        pulled = (after[f"{name}.values"][places].astype(np.float64) for name, places in marked.items())
        return Step(done.loss, math.sqrt(sum(float(np.square(values).sum()) for values in pulled)))

    def growth(self, images: Array, labels: Array, counts: Mapping[str, int]) -> dict[str, GrowthScores]:
        if unknown := sorted(counts.keys() - self.network.sparse_layers.keys()):
            raise UserError(f"growth_scores: no sparse layer is called '{unknown[0]}'")
        self._mark({})  # they are of no use here, and take memory
        images, labels = self._images(images), _labels(labels)
        plan, program = self._last = self._program("growth", len(images), counts)
        for name, count in counts.items():
            self._runtime.grow(name, min(max(0, count), self.network.sparse_layers[name].size))
        self._run(program, images, labels)
        scored = [step.options["layer"] for step in plan.instructions if step.kind == "score"]
        return {name: GrowthScores(*self._runtime.scores(name)) for name in scored}

    def predict(self, images: Array) -> Floats:
        images = self._images(images)
        if len(images):  # what is too large is refused before it takes memory
            self._program("predict", min(len(images), MOST_PREDICTED))
        logits = np.empty((len(images), self.network.classes), dtype=np.float32)
        for start in range(0, len(images), MOST_PREDICTED):
            chunk = images[start : start + MOST_PREDICTED]
            _, program = self._program("predict", len(chunk))
            self._run(program, chunk)
            logits[start : start + len(chunk)] = program.last_logits().reshape(len(chunk), -1)
        return logits

    def shrink(self) -> None:
        """Programs are small: what goes is the arena and the scratch memory."""
        self._runtime.shrink()

    def memory(self) -> dict[str, int]:
        """Bytes by purpose: arena, weights, indices and scratch."""
        return self._runtime.memory()

    def timed_step(self, images: Array, labels: Array, rate: float) -> list[tuple[Instruction, float]]:
        """A step, and the seconds of every instruction: CPU time of one thread, wall time of several."""
        plan, program = self._program("train", len(images))
        program.timed = True
        try:
            self.step(images, labels, rate)
        finally:
            program.timed = False
        return list(zip(plan.instructions, program.seconds().tolist(), strict=True))

    def bits(self) -> dict[str, Bits]:
        """Of the last step or growth: what layers kept of inputs, and where ReLUs let gradients pass."""
        assert self._inspect
        assert self._last is not None
        plan, program = self._last
        layout, found = plan.layout, {}
        for name, (buffer, shape) in plan.bits.items():
            ones = unpack_bits(program.content(buffer), layout.elements(shape))
            lanes_first = np.moveaxis(ones.reshape(layout.blocks, *shape, layout.lanes), -1, 1)
            found[name] = lanes_first.reshape(-1, *shape)[: layout.images]
        return found

    def gradients(self) -> dict[str, Floats]:
        """The gradients of the last step, by array, a pull included."""
        assert self._inspect
        found: dict[str, Floats] = {}
        for operation in self.network.operations:
            if isinstance(operation, Layer | BatchNorm):
                found |= _stored(self._runtime, operation, gradients=True)
        return {name: gradient for name, gradient in found.items() if gradient.size}

    def _run(
        self,
        program: _kernels.Program,
        images: Bytes,
        labels: Integers | None = None,
        rate: float = 0.0,
        pull: float = 0.0,
        descent: Descent = PLAIN,
    ) -> float:
        try:
            return program.run(
                images,
                labels,
                rate,
                pull,
                momentum=descent.momentum,
                weight_decay=descent.weight_decay,
                record=self._inspect,
            )
        except ValueError as error:
            raise NetworkError(f"the native kernels refuse a batch: {error}") from None
        except MemoryError:
            raise OutOfMemoryError("there is not enough memory for a batch; it needs to be smaller") from None

    def _program(self, mode: Mode, images: int, growing: Iterable[str] = ()) -> tuple[Plan, _kernels.Program]:
        if images == 0:
            raise NetworkError("a batch must have at least one image")
        key = mode, images, frozenset(growing)
        if key not in self._programs:
            layout = Layout.of(images, self._runtime.lanes)
            plan = lower(self.network, layout, mode, key[2], inspect=self._inspect)
            self._programs[key] = plan, assemble(self._runtime, plan)
        return self._programs[key]

    def _images(self, images: Array) -> Bytes:
        if images.dtype != np.uint8 or images.shape[1:] != self.network.input.shape:
            raise NetworkError(
                f"images of {images.dtype} {list(images.shape)}: the network takes uint8 "
                f"[n, {', '.join(map(str, self.network.input.shape))}]"
            )
        return np.ascontiguousarray(images)

    def _mark(self, marked: Mapping[str, Places]) -> None:
        """Tell the layers which weights to pull; step after step they are the same."""
        if self._marked is marked or (not marked and not self._marked):
            return
        if unknown := sorted(marked.keys() - self.network.sparse_layers.keys()):
            raise UserError(f"pull: no sparse layer is called '{unknown[0]}'")
        none = np.empty(0, dtype=np.int64)
        for name in (self._marked or {}).keys() | marked.keys():
            try:
                places = np.ascontiguousarray(marked.get(name, none), dtype=np.int64)
                self._runtime.mark(name, places)
            except (ValueError, TypeError) as error:
                raise NetworkError(f"marked weights of {name}: {error}") from None
        self._marked = marked


def unsupported(network: Network) -> str | None:
    """Why these kernels cannot execute a network, in words; None when they can."""
    try:
        open_runtime(network, 1, _instructions(None))
    except NetworkError as error:
        return str(error)
    return None


def _instructions(name: str | None) -> str:
    chosen = os.environ.get(INSTRUCTIONS, "") if name is None else name
    available = _kernels.available()
    if chosen and chosen not in available:
        raise UserError(f"{INSTRUCTIONS} = '{chosen}': this machine has {', '.join(available)}")
    return chosen


def _labels(labels: Array) -> Integers:
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise NetworkError(f"labels of {labels.dtype} {list(labels.shape)} instead of int64 [n]")
    return np.ascontiguousarray(labels, dtype=np.int64)


def _load(runtime: _kernels.Runtime, operation: Layer | BatchNorm, arrays: Mapping[str, Array]) -> None:
    own = {name: arrays.get(f"{operation.module}.{name}") for name in ("mask", "gain", "bias")}
    of = operation.module
    if isinstance(operation, BatchNorm):
        mean, variance = arrays[f"{of}.running_mean"], arrays[f"{of}.running_var"]
        count = int(arrays[f"{of}.num_batches_tracked"].item())
        runtime.load_batch_norm(of, mean, variance, count, arrays.get(f"{of}.weight"), own["bias"])
    else:
        values = arrays[f"{of}.values"] if operation.sparse else arrays[f"{of}.weight"].reshape(-1)
        runtime.load_layer(of, values, own["mask"], own["gain"], own["bias"])


def _stored(runtime: _kernels.Runtime, operation: Layer | BatchNorm, gradients: bool = False) -> State:
    of = operation.module
    if isinstance(operation, BatchNorm):
        arrays: State = dict(runtime.batch_norm_arrays(of, gradients))
        if not gradients:
            arrays["num_batches_tracked"] = np.array(runtime.batches(of))
    else:
        arrays = dict(runtime.layer_arrays(of, gradients))
        if operation.sparse and not gradients:
            arrays["mask"] = runtime.mask(of)
        elif not operation.sparse and "values" in arrays:
            arrays["weight"] = arrays.pop("values")
            arrays["weight"] = arrays["weight"].reshape(
                operation.weight_shape if arrays["weight"].size else -1
            )
    return {f"{of}.{name}": array for name, array in arrays.items()}
