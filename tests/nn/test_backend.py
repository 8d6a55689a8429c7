"""The torch backend: arrays in, arrays out, and plain SGD between."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from fedmef.device.backend import Backend
from fedmef.errors import NetworkError, UserError
from fedmef.methods.extrusion import Pull
from fedmef.nn import growth_scores, sparsify
from fedmef.nn.backend import TorchBackend, check_accelerator
from fedmef.nn.export import export_network, module_state
from fedmef.sparsity.masks import mask_from_positions
from fedmef.sparsity.model import Model, State
from fedmef.sparsity.network import Input, Network
from fedmef.sparsity.operations import Convolution, Flatten, Linear
from tests.nn import networks
from tests.nn.prepared import RECIPES, exported, images_for, labels_for, normalized, prepared

NAMES = ["small_cnn-cifar", "resnet18-imagenet", "mobilenet_v2-strided", "padded_vgg", "dense_net"]


def opened(model: Model) -> TorchBackend:
    backend = TorchBackend(model.network)
    backend.load(model.state)
    return backend


def frozen_copy(state: State) -> State:
    return {name: array.copy() for name, array in state.items()}


def assert_equal(found: State, expected: State) -> None:
    assert found.keys() == expected.keys()
    assert [name for name in expected if not np.array_equal(found[name], expected[name])] == []


def test_it_is_a_backend() -> None:
    backend: Backend = TorchBackend(exported(networks.padded_vgg()).network)
    assert backend.network.classes == 10


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_is_loaded_comes_back(recipe: str) -> None:
    model = exported(prepared("mobilenet_v2-strided", recipe))
    state = opened(model).state()
    assert_equal(state, model.state)
    assert list(state) == list(model.network.arrays)
    assert all(state[name].dtype == model.state[name].dtype for name in state)


def test_a_step_changes_the_state_and_not_what_was_loaded() -> None:
    module = prepared("small_cnn-cifar", "sparse")
    model = exported(module)
    before = frozen_copy(model.state)
    backend = opened(model)
    backend.step(images_for(module), labels_for(), 0.1)
    assert_equal(model.state, before)
    changed = {name for name, array in backend.state().items() if not np.array_equal(array, before[name])}
    masks = {name for name, spec in model.network.arrays.items() if spec.role == "mask"}
    assert changed == model.network.arrays.keys() - masks


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", NAMES)
def test_a_step_is_a_hand_written_one(name: str, recipe: str) -> None:
    module = prepared(name, recipe)
    backend = opened(exported(module))
    images, labels = images_for(module), labels_for()
    step = backend.step(images, labels, 0.25)

    batch = normalized(module, images).contiguous(memory_format=torch.channels_last)
    module.train()
    loss = F.cross_entropy(module(batch), torch.from_numpy(labels))
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    with torch.no_grad():
        for parameter, gradient in zip(module.parameters(), gradients, strict=True):
            parameter.sub_(0.25 * gradient)
    assert step.loss == pytest.approx(float(loss.detach()), rel=1e-5)
    assert step.pulled_norm == 0
    expected = module_state(module, backend.network)
    for key, array in backend.state().items():
        scale = max(1.0, float(np.abs(expected[key]).max(initial=0)))
        np.testing.assert_allclose(array, expected[key], rtol=1e-4, atol=1e-5 * scale, err_msg=key)


def pixel_network() -> Network:
    """Two channels of one pixel, two sparse filters, logits: what is pulled can be computed in the head."""
    return Network(
        Input((2, 1, 1), (0.0, 0.0), (1.0, 1.0)),
        (
            Convolution(name="a", inputs=("input",), module="conv", sparse=True, shape=(2, 2, 1, 1)),
            Flatten(name="b", inputs=("a",)),
            Linear(name="c", inputs=("b",), module="fc", shape=(2, 2)),
        ),
    )


BLACK = np.zeros((1, 2, 1, 1), np.uint8)  # of which no weight learns anything
CLASS_0 = np.zeros(1, np.int64)


def pixel_state(values: list[float], positions: list[int]) -> State:
    return {
        "conv.values": np.array(values, np.float32),
        "conv.mask": mask_from_positions(np.array(positions), 4),
        "fc.weight": np.eye(2, dtype=np.float32),
    }


def test_a_pull_alone_multiplies_the_marked_weights_by_hand() -> None:
    backend = TorchBackend(pixel_network())
    backend.load(pixel_state([3.0, -2.0, 4.0], [0, 1, 3]))
    step = backend.step(BLACK, CLASS_0, 0.5, Pull({"conv": np.array([2, 1])}, strength=0.25))
    # 1 − 2 λ μ = 0.75, for what is marked only
    assert backend.state()["conv.values"].tolist() == [3.0, -1.5, 3.0]
    assert step.pulled_norm == pytest.approx(np.hypot(1.5, 3.0))  # after the step
    assert step.loss == pytest.approx(np.log(2))


def test_a_pull_of_nothing_has_no_norm() -> None:
    backend = TorchBackend(pixel_network())
    backend.load(pixel_state([3.0, -2.0], [0, 1]))
    assert backend.step(BLACK, CLASS_0, 0.5, Pull({}, 1.0)).pulled_norm == 0
    assert backend.step(BLACK, CLASS_0, 0.5, Pull({"conv": np.array([], np.int64)}, 1.0)).pulled_norm == 0
    assert backend.state()["conv.values"].tolist() == [3.0, -2.0]


@pytest.mark.parametrize("recipe", ["sparse", "nsconv"])
def test_a_pull_adds_twice_lambda_theta_to_the_gradient(recipe: str) -> None:
    module = prepared("resnet18-imagenet", recipe)
    model = exported(module)
    images, labels, rate, strength = images_for(module), labels_for(), 0.1, 0.75
    marked = {
        name: np.arange(0, model.values(name).size, 3)
        for name in list(model.network.sparse_layers)[1::2]
        if model.values(name).size
    }
    plain, pulled = opened(model), opened(model)
    plain.step(images, labels, rate)
    step = pulled.step(images, labels, rate, Pull(marked, strength))
    without, with_pull = plain.state(), pulled.state()
    squares = 0.0
    for name, array in model.state.items():
        expected = without[name].astype(np.float64)
        layer = name.removesuffix(".values")
        if layer in marked and name.endswith(".values"):
            expected[marked[layer]] -= rate * 2 * strength * array[marked[layer]]
            squares += float(np.square(with_pull[name][marked[layer]].astype(np.float64)).sum())
            np.testing.assert_allclose(with_pull[name], expected, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(with_pull[name], without[name])
    assert step.pulled_norm == pytest.approx(np.sqrt(squares), rel=1e-6)


@pytest.mark.parametrize("recipe", ["sparse", "nsconv", "pruned caches"])
def test_growth_is_that_of_growth_scores_and_trains_nothing(recipe: str) -> None:
    module = prepared("resnet18-strided", recipe)
    model = exported(module)
    backend = opened(model)
    images, labels = images_for(module), labels_for()
    counts = dict.fromkeys(list(model.network.sparse_layers)[1:], 7)
    found = backend.growth(images, labels, counts)

    batch = normalized(module, images).contiguous(memory_format=torch.channels_last)
    with growth_scores(module.train(), counts) as expected:
        F.cross_entropy(module(batch), torch.from_numpy(labels)).backward()  # type: ignore[no-untyped-call]
    assert found.keys() == expected.keys() == counts.keys()
    for name, scores in found.items():
        np.testing.assert_array_equal(scores.positions, expected[name].positions)
        np.testing.assert_allclose(scores.gradients, expected[name].gradients, rtol=1e-5)

    assert_equal(backend.state(), model.state)  # BatchNorm's statistics included
    assert all(parameter.grad is None for parameter in backend.module.parameters())
    after = backend.growth(images, labels, counts)  # and nothing is left over for the next one
    for name in counts:
        np.testing.assert_array_equal(after[name].positions, found[name].positions)


def test_growth_leaves_batchnorms_statistics_alone_and_a_step_does_not() -> None:
    module = prepared("resnet18-cifar", "sparse")
    model = exported(module)
    roles = {name: spec.role for name, spec in model.network.arrays.items()}
    noted = [name for name, role in roles.items() if role in ("statistic", "counter")]
    backend, images, labels = opened(model), images_for(module), labels_for()
    backend.growth(images, labels, dict.fromkeys(model.network.sparse_layers, 3))
    after_growth = frozen_copy(backend.state())
    backend.step(images, labels, 0.1)
    after_step = backend.state()
    assert noted
    for name in noted:
        assert after_growth[name].tobytes() == model.state[name].tobytes(), name
        assert after_step[name].tobytes() != model.state[name].tobytes(), name


def test_growth_looks_at_the_batchs_own_statistics() -> None:
    """As training does: with other running ones its scores are the same."""
    module = prepared("small_cnn-cifar", "sparse")
    model = exported(module)
    counts = dict.fromkeys(model.network.sparse_layers, 3)
    found = opened(model).growth(images_for(module), labels_for(), counts)
    for name, array in model.state.items():
        if name.endswith("running_mean"):
            model.state[name] = array + 5
    other = opened(model).growth(images_for(module), labels_for(), counts)
    for name in counts:
        np.testing.assert_array_equal(other[name].gradients, found[name].gradients)


def test_growth_of_a_layer_that_is_not_sparse_is_refused() -> None:
    module = prepared("small_cnn-cifar", "sparse")
    with pytest.raises(UserError, match="no sparse layer is called 'classifier'"):
        opened(exported(module)).growth(images_for(module), labels_for(), {"classifier": 3})


@pytest.mark.parametrize("recipe", RECIPES)
def test_predictions_are_those_of_the_module_in_evaluation(recipe: str) -> None:
    module = prepared("resnet18-imagenet", recipe)
    model = exported(module)
    backend = opened(model)
    images = images_for(module)
    backend.step(images, labels_for(), 0.0)  # it was in training before
    backend.load(model.state)
    with torch.no_grad():
        expected = module.eval()(normalized(module, images)).numpy()
    found = backend.predict(images)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
    assert_equal(backend.state(), model.state)  # statistics included
    np.testing.assert_allclose(backend.predict(images[:1]), expected[:1], rtol=1e-4, atol=1e-4)


@pytest.fixture
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads")
def test_bits_do_not_depend_on_the_number_of_threads_which_stays() -> None:
    module = prepared("resnet18-cifar", "nsconv")
    model = exported(module)
    images, labels = images_for(module, 16), labels_for(16)
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        backend = opened(model)
        losses = [backend.step(images, labels, 0.1).loss for _ in range(2)]
        scores = backend.growth(images, labels, {"layer1.0.conv1": 9})["layer1.0.conv1"]
        results.append(
            (losses, scores.gradients.tobytes(), backend.predict(images).tobytes(), backend.state())
        )
        assert torch.get_num_threads() == threads
    for losses, gradients, logits, state in results[1:]:
        assert (losses, gradients, logits) == results[0][:3]
        assert_equal(state, results[0][3])


@pytest.mark.usefixtures("_threads")
def test_threads_are_restored_after_an_error() -> None:
    torch.set_num_threads(2)
    backend = opened(exported(networks.padded_vgg()))
    with pytest.raises(RuntimeError):
        backend.predict(np.zeros((1, 3, 2, 2), np.uint8))
    assert torch.get_num_threads() == 2


def test_layers_may_have_other_counts_after_a_load() -> None:
    backend = TorchBackend(pixel_network())
    backend.load(pixel_state([3.0, -2.0], [0, 1]))
    backend.step(BLACK, CLASS_0, 0.5)
    backend.load(pixel_state([1.0, 2.0, 4.0], [0, 2, 3]))
    backend.step(BLACK, CLASS_0, 0.5, Pull({"conv": np.array([2])}, 0.25))
    assert backend.state()["conv.values"].tolist() == [1.0, 2.0, 3.0]
    assert backend.growth(BLACK, CLASS_0, {"conv": 1}).keys() == {"conv"}


def test_a_frozen_array_stays_as_it_is() -> None:
    module = prepared("small_cnn-cifar", "sparse")
    model = exported(module)
    frozen = ("features.1.0.values", "classifier.bias", "features.0.1.weight")
    backend = TorchBackend(replace(model.network, frozen=frozen))
    backend.load(model.state)
    for _ in range(2):
        backend.step(images_for(module), labels_for(), 0.1)
    for name in model.network.floats:
        assert np.array_equal(backend.state()[name], model.state[name]) == (name in frozen), name


@pytest.mark.parametrize("missing", ["conv.values", "fc.weight"])
def test_a_state_that_lacks_an_array_is_refused(missing: str) -> None:
    state = pixel_state([3.0, -2.0], [0, 1])
    del state[missing]
    with pytest.raises(NetworkError, match=f"has no {missing}"):
        TorchBackend(pixel_network()).load(state)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("conv.values", np.zeros(3, np.float32)),
        ("conv.values", np.zeros(2, np.float64)),
        ("conv.mask", np.array([0b0111], np.uint8)),
        ("conv.mask", np.array([0b10011], np.uint8)),
        ("conv.mask", np.array([0b0011, 0], np.uint8)),
        ("fc.weight", np.zeros((2, 3), np.float32)),
        ("other", np.zeros(1, np.float32)),
    ],
)
def test_a_wrong_state_is_refused(name: str, wrong: NDArray[np.float32]) -> None:
    with pytest.raises(NetworkError):
        TorchBackend(pixel_network()).load(pixel_state([3.0, -2.0], [0, 1]) | {name: wrong})


def test_arrays_that_cannot_be_written_to_are_taken() -> None:
    module = prepared("small_cnn-cifar", "plain")
    model, images, labels = exported(module), images_for(module), labels_for()
    for array in (*model.state.values(), images, labels):
        array.flags.writeable = False
    backend = opened(model)
    backend.step(images, labels, 0.1)
    assert backend.predict(images).shape == (3, 10)


class WithDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.drop(self.conv(x).mean((2, 3))))
        return logits


def dropped(seed: int, steps: int = 3) -> list[float]:
    torch.manual_seed(1)
    module = WithDropout()
    images = Input((3, 8, 8), (0.5,) * 3, (0.5,) * 3)
    network = export_network(module, images)
    backend = TorchBackend(network, module=module)
    backend.load(module_state(module, network), seed)
    batch = np.random.default_rng(0).integers(0, 256, (4, 3, 8, 8), dtype=np.uint8)
    before = torch.get_rng_state()
    losses = [backend.step(batch, labels_for(4), 0.0).loss for _ in range(steps)]
    backend.growth(batch, labels_for(4), {})
    backend.predict(batch)
    assert torch.equal(torch.get_rng_state(), before)
    return losses


def test_dropout_draws_from_the_seed_and_leaves_pytorchs_generator_alone() -> None:
    first = dropped(seed=5)
    torch.rand(7)
    assert dropped(seed=5) == first
    assert dropped(seed=6) != first
    assert len(set(first)) == 3  # every step draws other numbers


def test_loading_leaves_pytorchs_generator_alone() -> None:
    module = WithDropout()
    network = export_network(module, Input((3, 8, 8), (0.5,) * 3, (0.5,) * 3))
    before = torch.get_rng_state()
    TorchBackend(network, module=module).load(module_state(module, network), seed=2**63 - 1)
    assert torch.equal(torch.get_rng_state(), before)


class Views(nn.Module):
    """view() works on the usual layout only."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.fc = nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(F.silu(self.conv(x.view(-1, 3, 64).view(-1, 3, 8, 8))).view(-1, 512))
        return logits


def test_own_code_gets_images_in_the_usual_layout() -> None:
    module = Views()
    network = export_network(module, Input((3, 8, 8), (0.5,) * 3, (0.5,) * 3))
    backend = TorchBackend(network, module=module)
    backend.load(module_state(module, network))
    images = np.zeros((2, 3, 8, 8), np.uint8)
    assert backend.predict(images).shape == (2, 10)
    backend.step(images, labels_for(2), 0.1)


def test_own_sparse_code_is_trained_and_adjusted_like_any_other() -> None:
    torch.manual_seed(0)
    module = sparsify(networks.vgg(), sparsity=0.5)
    network = export_network(module, Input((3, 16, 16), (0.5,) * 3, (0.5,) * 3))
    assert network.opaque is not None
    backend = TorchBackend(network, module=module)
    backend.load(module_state(module, network), seed=1)
    images = np.random.default_rng(0).integers(0, 256, (4, 3, 16, 16), dtype=np.uint8)
    layer = next(iter(network.sparse_layers))
    step = backend.step(images, labels_for(4), 0.1, Pull({layer: np.arange(5)}, 0.5))
    assert step.pulled_norm > 0
    assert backend.growth(images, labels_for(4), {layer: 4})[layer].positions.size == 4


@pytest.mark.parametrize("name", ["cpu", "cpu:0"])
def test_a_cpu_is_always_there(name: str) -> None:
    check_accelerator(name)
    assert TorchBackend(pixel_network(), accelerator=name).accelerator.type == "cpu"


@pytest.mark.parametrize("name", ["gpu", "", "meta", "cuda:x", "CPU"])
def test_what_is_no_accelerator_is_named(name: str) -> None:
    with pytest.raises(UserError, match=f"accelerator = '{name}': must be cpu, cuda or cuda:N"):
        check_accelerator(name)


def test_a_cuda_device_that_is_not_there_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check_accelerator("cuda")
    check_accelerator("cuda:1")
    with pytest.raises(UserError, match=r"accelerator = 'cuda:2': this machine has 2 CUDA devices; use cpu"):
        check_accelerator("cuda:2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(UserError, match="this machine has 0 CUDA devices"):
        TorchBackend(pixel_network(), accelerator="cuda")
