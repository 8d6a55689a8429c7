"""The operations that a network as data is made of: geometry, shapes and names of arrays, no framework.

An operation has a name, which is that of its result, and the names of the results that it takes. Shapes are
those of one image: (channels, height, width), or (features,).
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from fedmef.errors import NetworkError

Shape = tuple[int, ...]
Pair = tuple[int, int]
Role = Literal["weight", "statistic", "mask", "counter"]
FloatType = Literal["float32", "float64"]


@dataclass(frozen=True)
class ArraySpec:
    """What an array of a network's state must be.

    Attributes:
        shape: None for a sparse layer's values, of which there are as many as its mask has ones.
        role: "weight" is trained, "statistic" (BatchNorm's) is averaged like a weight, "mask" is packed, and
            "counter" never leaves where it is.
    """

    shape: Shape | None
    dtype: Literal["float32", "float64", "uint8", "int64"]
    role: Role


@dataclass(frozen=True)
class Normalization:
    """NSConv's constants: see `fedmef.nn.normalization`."""

    gamma: float = 1.0
    scaling: Literal["filter", "paper"] = "filter"
    input_channels: int = 1
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        if min(self.gamma, self.epsilon) <= 0 or self.input_channels < 1:
            raise NetworkError(f"constants of NSConv that make no sense: {self}")


@dataclass(frozen=True)
class Cache:
    """How a layer's input is kept for the backward pass: exactly at `sparsity` 0, otherwise pruned."""

    sparsity: float = 0.0
    dtype: Literal["fp32", "fp16", "bf16"] = "fp32"

    def __post_init__(self) -> None:
        if not 0 <= self.sparsity < 1:
            raise NetworkError(f"a cache of sparsity {self.sparsity}")


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One step of a network."""

    kind: ClassVar[str]
    name: str
    inputs: tuple[str, ...]

    def output(self, *inputs: Shape) -> Shape:
        """The shape of the result, or a `NetworkError` when it cannot take these inputs."""
        raise NotImplementedError

    def arrays(self) -> dict[str, ArraySpec]:
        """The arrays of the state that it uses, by name."""
        return {}

    def _fail(self, why: str) -> NetworkError:
        return NetworkError(f"{self.kind} '{self.name}': {why[:200]}")

    def _one_input(self, inputs: tuple[Shape, ...], dimensions: int) -> Shape:
        if len(inputs) != 1 or len(inputs[0]) != dimensions:
            raise self._fail(f"it takes one input of {dimensions} dimensions, not {list(inputs)}")
        return inputs[0]


@dataclass(frozen=True, kw_only=True)
class Layer(Operation):
    """A convolution or a linear layer.

    Attributes:
        module: begins the names of its arrays; a layer that is used twice is two operations of one module.
        sparse: its weight is `values` and a packed `mask` instead of a dense `weight`.
        normalization: filters are centred and scaled before they are used (NSConv).
        swat: the share of weights, the smallest, that a forward pass leaves out (SWAT, of ZeroFL).
    """

    module: str
    dtype: FloatType = "float32"
    sparse: bool = False
    bias: bool = False
    gain: bool = False
    normalization: Normalization | None = None
    cache: Cache = field(default_factory=Cache)
    swat: float = 0.0

    def __post_init__(self) -> None:
        if not self.sparse and (self.gain or self.normalization or self.swat or self.cache != Cache()):
            raise self._fail("only a sparse layer has a gain, a normalisation, a cache or swat")
        if not 0 <= self.swat < 1 or (self.swat and not isinstance(self, Convolution)):
            raise self._fail("swat is a share, and of a convolution")

    @property
    def weight_shape(self) -> Shape:
        """Of the dense weight, filters first."""
        raise NotImplementedError

    @property
    def size(self) -> int:
        """Weights, active or pruned."""
        return math.prod(self.weight_shape)

    @property
    def filters(self) -> int:
        """Rows of the weight as a matrix."""
        return self.weight_shape[0]

    @property
    def filter_size(self) -> int:
        """Columns of the weight as a matrix: the weights of one filter."""
        return self.size // self.filters

    def arrays(self) -> dict[str, ArraySpec]:
        """Its weight, and gain and bias if it has them."""
        specs: dict[str, ArraySpec] = {}
        if self.sparse:
            specs["values"] = ArraySpec(None, self.dtype, "weight")
            specs["mask"] = ArraySpec((-(-self.size // 8),), "uint8", "mask")
        else:
            specs["weight"] = ArraySpec(self.weight_shape, self.dtype, "weight")
        for name, there in (("gain", self.gain), ("bias", self.bias)):
            if there:
                specs[name] = ArraySpec((self.filters,), self.dtype, "weight")
        return {f"{self.module}.{name}": spec for name, spec in specs.items()}


@dataclass(frozen=True, kw_only=True)
class Convolution(Layer):
    """A 2-d convolution with zero padding."""

    kind = "convolution"
    shape: tuple[int, int, int, int]  # [out, in/groups, kh, kw]
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    @property
    def weight_shape(self) -> Shape:
        return self.shape

    def output(self, *inputs: Shape) -> Shape:
        channels, *size = self._one_input(inputs, 3)
        out, per_group, *kernel = self.shape
        if channels != per_group * self.groups or out % self.groups:
            raise self._fail(f"{channels} channels, {self.groups} groups and a weight of {list(self.shape)}")
        return out, *_window_counts(self, size, kernel, self.stride, self.padding, self.dilation)


@dataclass(frozen=True, kw_only=True)
class Linear(Layer):
    """A fully connected layer."""

    kind = "linear"
    shape: Pair  # [out, in]

    @property
    def weight_shape(self) -> Shape:
        return self.shape

    def output(self, *inputs: Shape) -> Shape:
        if self._one_input(inputs, 1) != (self.shape[1],):
            raise self._fail(f"it takes {self.shape[1]} features, not {list(inputs[0])}")
        return (self.shape[0],)


@dataclass(frozen=True, kw_only=True)
class BatchNorm(Operation):
    """Batch normalisation by channel; a batch with one value a channel uses the running statistics."""

    kind = "batch_norm"
    module: str
    channels: int
    epsilon: float = 1e-5
    momentum: float = 0.1
    affine: bool = True
    dtype: FloatType = "float32"

    def __post_init__(self) -> None:
        if self.epsilon < 0 or not 0 <= self.momentum <= 1:
            raise self._fail(f"an epsilon of {self.epsilon:g} and a momentum of {self.momentum:g}")

    def output(self, *inputs: Shape) -> Shape:
        if len(inputs) != 1 or not inputs[0] or inputs[0][0] != self.channels:
            raise self._fail(f"it takes {self.channels} channels, not {list(inputs)}")
        return inputs[0]

    def arrays(self) -> dict[str, ArraySpec]:
        roles: dict[str, Role] = {"weight": "weight", "bias": "weight"} if self.affine else {}
        roles |= {"running_mean": "statistic", "running_var": "statistic"}
        specs = {name: ArraySpec((self.channels,), self.dtype, role) for name, role in roles.items()}
        specs["num_batches_tracked"] = ArraySpec((), "int64", "counter")
        return {f"{self.module}.{name}": spec for name, spec in specs.items()}


@dataclass(frozen=True, kw_only=True)
class LayerNorm(Operation):
    """All values of one image, centred and scaled to a root mean square of 1; it has no parameters.

    Attributes:
        epsilon: added to the variance, in units of the largest magnitude squared.
    """

    kind = "layer_norm"
    epsilon: float = 1e-10

    def output(self, *inputs: Shape) -> Shape:
        if len(inputs) != 1 or not 0 < self.epsilon < math.inf:
            raise self._fail("it takes one input and a positive epsilon")
        return inputs[0]


@dataclass(frozen=True, kw_only=True)
class Scale(Operation):
    """Every value times a constant."""

    kind = "scale"
    factor: float

    def output(self, *inputs: Shape) -> Shape:
        if len(inputs) != 1 or not 0 < self.factor < math.inf:
            raise self._fail("it takes one input and a positive factor")
        return inputs[0]


@dataclass(frozen=True, kw_only=True)
class ReLU(Operation):
    """`max(x, 0)`, and at most `upper` if that is given.

    Attributes:
        compact: one bit an element is kept for the backward pass, and not the result.
    """

    kind = "relu"
    upper: float | None = None
    compact: bool = True

    def output(self, *inputs: Shape) -> Shape:
        if len(inputs) != 1:
            raise self._fail("it takes one input")
        return inputs[0]


@dataclass(frozen=True, kw_only=True)
class MaxPool(Operation):
    """The maximum of each window; `compact` keeps a byte an output for the backward pass."""

    kind = "max_pool"
    kernel: Pair
    stride: Pair
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    ceil_mode: bool = False
    compact: bool = True

    def output(self, *inputs: Shape) -> Shape:
        channels, *size = self._one_input(inputs, 3)
        return channels, *_pool_counts(self, size, self.dilation)


@dataclass(frozen=True, kw_only=True)
class AveragePool(Operation):
    """The mean of each window; `divisor` replaces the number of elements, `count_padding` counts padding."""

    kind = "average_pool"
    kernel: Pair
    stride: Pair
    padding: Pair = (0, 0)
    ceil_mode: bool = False
    count_padding: bool = True
    divisor: int | None = None
    compact: bool = True

    def output(self, *inputs: Shape) -> Shape:
        channels, *size = self._one_input(inputs, 3)
        if self.divisor == 0:
            raise self._fail("it divides by 0")
        return channels, *_pool_counts(self, size, (1, 1))


@dataclass(frozen=True, kw_only=True)
class AdaptiveAveragePool(Operation):
    """The mean of windows that divide the image into `size` parts; (1, 1) is the mean of the whole image."""

    kind = "adaptive_average_pool"
    size: Pair = (1, 1)
    compact: bool = True

    def output(self, *inputs: Shape) -> Shape:
        return self._one_input(inputs, 3)[0], *self.size


@dataclass(frozen=True, kw_only=True)
class Add(Operation):
    """The sum of two results, as at the end of a residual block."""

    kind = "add"

    def output(self, *inputs: Shape) -> Shape:
        if len(inputs) != 2 or inputs[0] != inputs[1]:
            raise self._fail(f"it takes two inputs of one shape, not {list(inputs)}")
        return inputs[0]


@dataclass(frozen=True, kw_only=True)
class Concatenate(Operation):
    """Several results, channels after channels."""

    kind = "concatenate"

    def output(self, *inputs: Shape) -> Shape:
        if not inputs or any(not shape or shape[1:] != inputs[0][1:] for shape in inputs):
            raise self._fail(f"it takes inputs that differ in channels only, not {list(inputs)}")
        return sum(shape[0] for shape in inputs), *inputs[0][1:]


@dataclass(frozen=True, kw_only=True)
class Flatten(Operation):
    """All elements as features."""

    kind = "flatten"

    def output(self, *inputs: Shape) -> Shape:
        if len(inputs) != 1:
            raise self._fail("it takes one input")
        return (math.prod(inputs[0]),)


@dataclass(frozen=True, kw_only=True)
class Opaque(Operation):
    """Something that only the network's own PyTorch code can do; `description` says what, to people.

    Attributes:
        shape: of the result.
        own: the arrays that it uses.
    """

    kind = "opaque"
    description: str
    shape: Shape
    own: dict[str, ArraySpec] = field(default_factory=dict)

    def output(self, *inputs: Shape) -> Shape:
        return self.shape

    def arrays(self) -> dict[str, ArraySpec]:
        return self.own


OPERATIONS: dict[str, type[Operation]] = {
    operation.kind: operation
    for operation in (
        Convolution,
        Linear,
        BatchNorm,
        LayerNorm,
        Scale,
        ReLU,
        MaxPool,
        AveragePool,
        AdaptiveAveragePool,
        Add,
        Concatenate,
        Flatten,
        Opaque,
    )
}


def _pool_counts(operation: MaxPool | AveragePool, size: list[int], dilation: Pair) -> Shape:
    """How many windows fit; as in PyTorch, none may lie in the padding alone."""
    if any(2 * pad > window for pad, window in zip(operation.padding, operation.kernel, strict=True)):
        raise operation._fail("it is padded by more than half of its window")
    return _window_counts(
        operation, size, operation.kernel, operation.stride, operation.padding, dilation, operation.ceil_mode
    )


def _window_counts(
    operation: Operation,
    size: list[int],
    kernel: Shape | list[int],
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    ceil_mode: bool = False,
) -> Shape:
    """How many windows fit, down and across: PyTorch's formula."""
    counts = []
    for length, window, step, pad, spread in zip(size, kernel, stride, padding, dilation, strict=True):
        if min(window, step, spread) < 1:
            raise operation._fail("kernel, stride and dilation must be at least 1")
        room = length + 2 * pad - spread * (window - 1) - 1
        count = (room + (step - 1 if ceil_mode else 0)) // step + 1
        if ceil_mode and (count - 1) * step >= length + pad:
            count -= 1  # the last window must begin inside
        if count < 1:
            raise operation._fail(f"an image of {list(size)} is smaller than its window")
        counts.append(count)
    return tuple(counts)
