"""Plans: as few buffers as a network allows, and none that overlaps another one in use."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmef.native.arena import lifetimes, place
from fedmef.native.forward import Mode
from fedmef.native.lowering import lower
from fedmef.native.plan import ALIGNMENT, Instruction, Layout, Plan
from fedmef.sparsity.model import Model
from fedmef.sparsity.network import INPUT, Input, Network
from fedmef.sparsity.operations import (
    Add,
    BatchNorm,
    Cache,
    Convolution,
    Flatten,
    LayerNorm,
    Linear,
    Operation,
    ReLU,
)
from tests.native.random_networks import models

IMAGES = Input((4, 4, 4), (0.5,) * 4, (0.25,) * 4)
DENSE = 4 * 4 * 4 * 4 * 8  # bytes of eight images


def convolution(name: str, source: str, *, cached: bool = True) -> Convolution:
    cache = Cache(0.5) if cached else Cache()
    return Convolution(
        name=name, inputs=(source,), module=name, shape=(4, 4, 3, 3), padding=(1, 1), sparse=True, cache=cache
    )


def relu(name: str, source: str) -> ReLU:
    return ReLU(name=name, inputs=(source,))


def network(*body: Operation, frozen: tuple[str, ...] = ()) -> Network:
    """The operations, and a classifier of what the last one gives."""
    ends = (
        Flatten(name="flat", inputs=(body[-1].name,)),
        Linear(name="head", inputs=("flat",), module="head", shape=(3, 64), sparse=True, cache=Cache(0.5)),
    )
    return Network(IMAGES, body + ends, frozen)


def residual_block() -> Network:
    return network(
        convolution("stem", INPUT),
        convolution("one", "stem"),
        relu("middle", "one"),
        convolution("two", "middle"),
        Add(name="sum", inputs=("two", "stem")),
        relu("end", "sum"),
    )


def steps(plan: Plan) -> list[str]:
    return [instruction.kind for instruction in plan.instructions]


def dense_at_once(plan: Plan, size: int = DENSE) -> int:
    """How many dense buffers are in use at the same time, at most."""
    lives = [
        life
        for life, own in zip(lifetimes(plan.instructions, len(plan.sizes)), plan.sizes, strict=True)
        if own == size
    ]
    return max(sum(first <= now <= last for first, last in lives) for now in range(len(plan.instructions)))


@pytest.mark.parametrize("mode", ["train", "predict"])
def test_a_residual_block_has_two_dense_buffers(mode: Mode) -> None:
    plan = lower(residual_block(), Layout(8, 8), mode)
    assert dense_at_once(plan) == 2
    assert "add" not in steps(plan)
    assert "copy" not in steps(plan)


def test_the_block_by_hand() -> None:
    plan = lower(residual_block(), Layout(8, 8), "train")
    assert steps(plan) == [
        *("read_images", "prune", "convolve"),
        *("prune", "convolve_relu"),
        *("prune", "convolve_relu"),
        *("prune", "convolve", "cross_entropy"),
        *("transpose", "weight_gradient", "update", "input_gradient_relu"),
        *("transpose", "weight_gradient", "update", "input_gradient_relu"),
        *("transpose", "weight_gradient", "update", "input_gradient"),
        *("weight_gradient", "update"),
    ]
    convolutions = [step for step in plan.instructions if step.kind.startswith("convolve")]
    assert [step.options["accumulate"] for step in convolutions] == [False, False, True, False]
    assert convolutions[2].buffers["y"] == convolutions[1].buffers["x"]
    gradients = [step for step in plan.instructions if step.kind.startswith("input_gradient")]
    assert [step.options["layer"] for step in gradients] == ["head", "two", "one"]
    assert gradients[2].options["accumulate"]
    assert gradients[2].buffers["dx"] == gradients[0].buffers["dx"]


def test_a_layer_does_not_add_to_what_it_reads() -> None:
    plan = lower(
        network(convolution("one", INPUT), convolution("two", "one"), Add(name="sum", inputs=("two", "one"))),
        Layout(8, 8),
        "predict",
    )
    assert steps(plan) == ["read_images", "convolve", "convolve", "add", "convolve", "logits"]


def test_an_input_that_must_stay_is_not_written_over() -> None:
    exact = network(
        convolution("stem", INPUT),
        relu("first", "stem"),
        convolution("one", "first", cached=False),
        relu("end", "one"),
    )
    plan = lower(exact, Layout(8, 8), "train")
    reading = next(step for step in plan.instructions if step.options.get("layer") == "one")
    life = lifetimes(plan.instructions, len(plan.sizes))[reading.buffers["x"]]
    gradient = next(
        number
        for number, step in enumerate(plan.instructions)
        if step.kind == "weight_gradient" and step.options["layer"] == "one"
    )
    assert life[1] == gradient
    assert plan.instructions[gradient].buffers["dense"] == reading.buffers["x"]


def test_an_input_of_two_layers_is_pruned_once() -> None:
    two = network(
        convolution("stem", INPUT),
        convolution("one", "stem"),
        convolution("two", "stem"),
        Add(name="sum", inputs=("one", "two")),
    )
    plan = lower(two, Layout(8, 8), "train")
    assert steps(plan).count("prune") == 3  # of the images, of the stem's result, of the sum
    assert plan.bits["one"] == plan.bits["two"]


def test_a_gradient_that_is_still_needed_is_not_changed() -> None:
    both = network(
        convolution("stem", INPUT),
        Add(name="twice", inputs=("stem", "stem")),
        Add(name="thrice", inputs=("twice", "stem")),
    )
    plan = lower(both, Layout(8, 8), "train")
    backward = plan.instructions[steps(plan).index("cross_entropy") :]
    assert [step.kind for step in backward].count("copy") == 1
    adding = [step.buffers for step in backward if step.kind == "add"]
    assert len(adding) == 2  # once to a copy, and once more to that
    assert adding[0] == adding[1]
    assert adding[0]["to"] != adding[0]["source"]


def test_what_nothing_trained_depends_on_has_no_gradient() -> None:
    frozen = network(convolution("stem", INPUT), relu("first", "stem"), frozen=("stem.values",))
    plan = lower(frozen, Layout(8, 8), "train")
    assert [step for step in steps(plan) if step.endswith(("gradient", "backward", "update"))] == [
        "weight_gradient",
        "update",
    ]
    assert "bits" not in plan.instructions[2].buffers


def test_images_are_read_again_instead_of_kept() -> None:
    plan = lower(network(convolution("stem", INPUT, cached=False)), Layout(8, 8), "train")
    assert steps(plan).count("read_images") == 2
    assert "input_gradient" in steps(plan)  # the classifier's
    gradients = [step for step in plan.instructions if step.kind.startswith("input_gradient")]
    assert [step.options["layer"] for step in gradients] == ["head"]


def test_growth_looks_only_at_the_layers_asked_for() -> None:
    plan = lower(residual_block(), Layout(8, 8), "growth", ["two"])
    assert [step.options["layer"] for step in plan.instructions if step.kind == "score"] == ["two"]
    gradients = [step for step in plan.instructions if step.kind.startswith("input_gradient")]
    assert [step.options["layer"] for step in gradients] == ["head"]
    assert "update" not in steps(plan)
    relus = [step.options["at_zero"] for step in plan.instructions if step.kind == "convolve_relu"]
    assert relus
    assert all(relus)


def test_batch_norm_keeps_its_input_in_training_and_works_in_place_otherwise() -> None:
    normal = network(
        convolution("stem", INPUT), BatchNorm(name="norm", inputs=("stem",), module="norm", channels=4)
    )
    train, predict = (lower(normal, Layout(8, 8), mode) for mode in ("train", "predict"))
    for plan, in_place in ((train, False), (predict, True)):
        step = next(step for step in plan.instructions if step.kind.startswith("batch_norm"))
        assert (step.buffers["x"] == step.buffers["y"]) == in_place


def test_logits_that_are_kept_are_copied_for_the_loss() -> None:
    head = Linear(name="head", inputs=("flat",), module="head", shape=(3, 64))
    normal = Network(
        IMAGES, (Flatten(name="flat", inputs=(INPUT,)), head, LayerNorm(name="norm", inputs=("head",)))
    )
    plan = lower(normal, Layout(8, 8), "train")
    loss = next(step for step in plan.instructions if step.kind == "cross_entropy")
    backward = next(step for step in plan.instructions if step.kind == "layer_norm_backward")
    assert loss.buffers["logits"] != backward.buffers["y"]


@pytest.mark.parametrize(
    ("images", "lanes"), [(1, 1), (4, 1), (5, 8), (8, 8), (9, 1), (10, 8), (16, 8), (17, 8), (33, 8)]
)
def test_lanes_are_used_where_enough_of_them_have_an_image(images: int, lanes: int) -> None:
    layout = Layout.of(images, 8)
    assert layout.lanes == lanes
    assert layout.blocks * layout.lanes >= images


def test_buffers_of_different_times_share_their_place() -> None:
    instructions = [Instruction("a", {"x": 0, "y": 1}), Instruction("b", {"x": 1, "y": 2})]
    lives = lifetimes(instructions, 3)
    assert lives == [(0, 0), (0, 1), (1, 1)]
    assert place([128, 64, 128], lives) == [0, 128, 0]


@settings(deadline=None, max_examples=100, derandomize=True)
@given(
    model=models(),
    images=st.integers(1, 20),
    mode=st.sampled_from(["train", "growth", "predict"]),
    inspect=st.booleans(),
)
def test_no_two_buffers_in_use_overlap(model: Model, images: int, mode: Mode, inspect: bool) -> None:
    plan = lower(model.network, Layout.of(images, 8), mode, model.network.sparse_layers, inspect=inspect)
    lives = lifetimes(plan.instructions, len(plan.sizes))
    written: set[int] = set()
    for instruction in plan.instructions:
        written |= set(instruction.buffers.values())
    assert written == set(range(len(plan.sizes)))
    for one, (offset, size) in enumerate(zip(plan.offsets, plan.sizes, strict=True)):
        assert offset % ALIGNMENT == 0
        assert offset + size <= plan.arena
        for other in range(one):
            if lives[one][0] <= lives[other][1] and lives[other][0] <= lives[one][1]:
                apart = (
                    plan.offsets[other] + plan.sizes[other] <= offset or offset + size <= plan.offsets[other]
                )
                assert apart or not size or not plan.sizes[other]
