"""Anyone's network goes in, a sparse one comes out, or an error that names what is in the way."""

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedmef import nn as fnn
from fedmef.errors import UserError
from fedmef.models import MODELS, build_model
from fedmef.nn import SparseConv2d, SparseLinear, conversion_of, dense_by_default, sparse_layers, sparsify
from fedmef.sparsity import layer_counts
from tests.nn import networks
from tests.nn.networks import NETWORKS, Wrapped
from tests.nn.saved import saved_tensors
from tests.nn.styles import Standardized

FEDMEF: dict[str, Any] = {"sparsity": 0.8, "normalize": True, "activation_sparsity": 0.9}
PLAIN: dict[str, Any] = {"sparsity": 0.8}
DROPIT: dict[str, Any] = {"sparsity": 0.8, "activation_sparsity": 0.9, "cache_dtype": torch.float16}


def own(name: str) -> nn.Module:
    return build_model(name, classes=10, channels=3, width=8, seed=0)


BUILDERS: dict[str, Callable[[], nn.Module]] = {
    **NETWORKS,
    **{name: (lambda name=name: own(name)) for name in MODELS},  # type: ignore[misc]
}


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    return BUILDERS[name]()


def batch(size: int = 8) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    return torch.randn(size, 3, 16, 16, generator=random), torch.randint(0, 10, (size,), generator=random)


def with_statistics(model: nn.Module) -> nn.Module:
    """In evaluation, with BatchNorm statistics that are not those of a fresh network."""
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(16, 3, 16, 16) * 2 + 1)
    return model.eval()


def batchnorms(model: nn.Module) -> list[str]:
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d)
    return [name for name, module in model.named_modules() if isinstance(module, kinds)]


def layer_names(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)]


@pytest.mark.parametrize("name", BUILDERS)
def test_batchnorms_go_away_exactly_when_layers_normalise(name: str) -> None:
    before = batchnorms(build(name))
    assert before
    assert batchnorms(sparsify(build(name), **PLAIN)) == before
    assert batchnorms(sparsify(build(name), **DROPIT)) == before
    assert batchnorms(sparsify(build(name), **FEDMEF)) == []


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("options", [FEDMEF, PLAIN, DROPIT])
def test_first_depthwise_and_last_layers_stay_dense_and_the_others_do_not(
    name: str, options: dict[str, Any]
) -> None:
    plain = build(name)
    names = layer_names(plain)
    depthwise = [
        layer
        for layer in names
        if isinstance(module := plain.get_submodule(layer), nn.Conv2d)
        and 1 < module.groups == module.in_channels
    ]
    # Every one of these networks registers its layers in the order of execution.
    dense = {names[0], *depthwise, names[-1]}
    sizes = {layer: plain.get_parameter(f"{layer}.weight").numel() for layer in names}
    assert set(dense_by_default(plain)) == dense
    shapes = {layer: plain.get_parameter(f"{layer}.weight").shape for layer in names if layer not in dense}
    counts = layer_counts(shapes, 0.8, least=2)

    found = sparse_layers(sparsify(plain, **options))
    for layer in names:
        if layer in found:
            assert found[layer].active_count == (sizes[layer] if layer in dense else counts[layer]), layer
        else:
            assert layer in dense
    assert names[-1] not in found


@pytest.mark.parametrize("name", BUILDERS)
def test_without_sparsity_a_network_computes_what_it_did(name: str) -> None:
    plain = with_statistics(build(name))
    converted = sparsify(copy.deepcopy(plain), sparsity=0.0)
    images, _ = batch()
    assert sparse_layers(converted)
    torch.testing.assert_close(converted(images), plain(images))


@pytest.mark.parametrize("name", BUILDERS)
def test_a_sparse_network_computes_what_its_masked_original_does(name: str) -> None:
    plain = with_statistics(build(name))
    converted = sparsify(copy.deepcopy(plain), sparsity=0.6, activation_sparsity=0.9)
    with torch.no_grad():
        for layer, sparse in sparse_layers(converted).items():
            weight = plain.get_parameter(f"{layer}.weight")
            is_kept = sparse.dense_weight().view_as(weight) != 0
            assert torch.equal(sparse.dense_weight().view_as(weight), weight * is_kept)
            weight.mul_(is_kept)
    images, _ = batch()
    torch.testing.assert_close(converted(images), plain(images))


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("options", [FEDMEF, FEDMEF | {"affine": True}, PLAIN, DROPIT])
def test_one_step_lowers_the_loss(name: str, options: dict[str, Any]) -> None:
    model = sparsify(
        build(name), **options
    ).eval()  # no dropout, no batch statistics: the same function twice
    images, labels = batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()  # type: ignore[no-untyped-call]
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
    optimizer.step()
    after = nn.functional.cross_entropy(model(images), labels)
    assert after < loss


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("options", [FEDMEF, PLAIN, DROPIT])
@pytest.mark.parametrize("size", [1, 8])
def test_training_gives_finite_outputs_and_gradients_for_any_batch(
    name: str, options: dict[str, Any], size: int
) -> None:
    model = sparsify(build(name), **options).train()
    images, labels = batch(size)
    logits = model(images)
    nn.functional.cross_entropy(logits, labels).backward()  # type: ignore[no-untyped-call]
    assert logits.shape == (size, 10)
    assert logits.isfinite().all()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("name", BUILDERS)
def test_normalised_networks_are_the_same_in_training_and_evaluation(name: str) -> None:
    model = sparsify(build(name), **FEDMEF)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    images, _ = batch()
    assert torch.equal(model.train()(images), model.eval()(images))


@pytest.mark.parametrize("name", BUILDERS)
def test_nothing_dense_is_kept_of_what_a_sparse_layer_reads(name: str) -> None:
    """The batch itself and what only the classifier reads are the only inputs that stay whole."""
    model = sparsify(build(name), **FEDMEF).train()
    images = batch()[0].contiguous(memory_format=torch.channels_last)  # as our data loading makes it
    with saved_tensors() as seen:
        model(images)
    own = {tensor.data_ptr() for tensor in [*model.parameters(), *model.buffers(), images]}
    dense_maps = [tensor.shape for tensor in seen if tensor.dim() == 4 and tensor.data_ptr() not in own]
    # one byte an output for max-pooling; one pixel before a classifier that is a convolution
    assert [shape for shape in dense_maps if shape[2:].numel() > 1] == (
        [(8, 16, 8, 8), (8, 16, 4, 4)] if name == "vgg" else [(8, 16, 8, 8)] if name == "small_cnn" else []
    )


def masks(model: nn.Module) -> list[Tensor]:
    return [layer.mask for layer in sparse_layers(model).values()]


def test_the_seed_decides_the_masks() -> None:
    state = torch.get_rng_state()
    first, same, other = (masks(sparsify(own("resnet18"), seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(one, two) for one, two in zip(first, same, strict=True))
    assert not any(torch.equal(one, two) for one, two in zip(first, other, strict=True))


def test_equal_layers_get_different_masks() -> None:
    layers = sparse_layers(sparsify(own("resnet18")))
    assert not torch.equal(layers["layer1.0.conv2"].mask, layers["layer1.1.conv2"].mask)


def test_magnitude_initialisation_keeps_the_largest_weights() -> None:
    plain = own("resnet18")
    model = sparsify(copy.deepcopy(plain), initialization="magnitude")
    for name, layer in sparse_layers(model).items():
        weight = plain.get_parameter(f"{name}.weight").detach().flatten().abs()
        threshold = weight.topk(layer.active_count).values[-1]
        assert layer.values.detach().abs().min() == threshold


def test_erk_keeps_more_of_small_layers_within_the_same_budget() -> None:
    uniform = sparse_layers(sparsify(own("resnet18"), distribution="uniform"))
    erk = sparse_layers(sparsify(own("resnet18"), distribution="erk"))
    assert erk["layer1.0.conv1"].density > 3 * uniform["layer1.0.conv1"].density
    assert erk["layer4.1.conv2"].density < uniform["layer4.1.conv2"].density
    sizes = sum(layer.geometry.size for layer in uniform.values())
    assert sum(layer.active_count for layer in erk.values()) <= 0.1 * sizes


def test_an_empty_keep_dense_makes_every_layer_sparse() -> None:
    model = sparsify(networks.OtherMobileNet(), sparsity=0.5, keep_dense=[])
    assert layer_names(model) == []
    assert all(layer.density <= 0.5 for layer in sparse_layers(model).values())
    assert "blocks.0.depthwise" in sparse_layers(model)


def test_keep_dense_replaces_what_is_dense_by_default() -> None:
    model = sparsify(own("resnet18"), normalize=True, keep_dense=["layer1", "layer4.*.conv1", "fc"])
    layers = sparse_layers(model)
    dense = {name for name, layer in layers.items() if layer.density == 1}
    in_layer1 = {f"layer1.{block}.conv{number}" for block in (0, 1) for number in (1, 2)}
    assert dense == in_layer1 | {"layer4.0.conv1", "layer4.1.conv1"}
    assert layers["conv1"].density < 0.1
    assert isinstance(model.get_submodule("fc"), nn.Linear)


def test_layers_that_are_kept_dense_are_ordinary_ones_unless_they_must_not_be() -> None:
    name = "blocks.0.depthwise"
    assert type(sparsify(networks.OtherMobileNet(), **PLAIN).get_submodule(name)) is nn.Conv2d
    normalised = sparsify(networks.OtherMobileNet(), **PLAIN, normalize=True).get_submodule(name)
    assert isinstance(normalised, SparseConv2d)
    assert normalised.density == 1
    pruned_cache = sparsify(networks.OtherMobileNet(), **DROPIT).get_submodule(name)
    assert isinstance(pruned_cache, SparseConv2d)
    assert pruned_cache.cache.sparsity == 0.9


def test_the_first_and_the_last_layers_inputs_are_kept_whole() -> None:
    layers = sparse_layers(sparsify(own("resnet18"), **FEDMEF, keep_dense=[]))
    assert layers["conv1"].cache.sparsity == 0
    assert layers["fc"].cache.sparsity == 0
    assert {layers[name].cache.sparsity for name in layers.keys() - {"conv1", "fc"}} == {0.9}


def test_skipped_modules_stay_exactly_as_they_are() -> None:
    plain = own("resnet18")
    skipped = plain.get_submodule("layer2.0")
    fc = plain.get_submodule("fc")
    model = sparsify(plain, **FEDMEF, skip=["layer2.0", "fc"])
    assert model.get_submodule("layer2.0") is skipped
    assert model.get_submodule("fc") is fc
    assert len(layer_names(skipped)) == 3
    assert len(batchnorms(model)) == len(batchnorms(skipped)) == 3
    assert type(skipped.get_submodule("relu1")) is nn.ReLU
    assert not any(name.startswith("layer2.0.") for name in sparse_layers(model))


def test_a_batchnorm_that_a_skipped_module_feeds_stays() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU()),
        nn.BatchNorm2d(8),
        nn.Flatten(),
        nn.Linear(8 * 144, 10),
    )
    assert batchnorms(sparsify(copy.deepcopy(model), normalize=True)) == []
    assert batchnorms(sparsify(copy.deepcopy(model), normalize=True, skip=["1"])) == ["2"]
    assert batchnorms(sparsify(copy.deepcopy(model), normalize=True, skip=["1.0"])) == ["2"]


def test_a_batchnorm_of_a_sum_goes_away_only_when_both_sides_normalise() -> None:
    def feeding_sum() -> nn.Module:
        return Wrapped(nn.Sequential(networks.PreactBlock(8, 16, 1, torch.relu), nn.BatchNorm2d(16)))

    for skip, left in ([], []), (["part.0.shortcut"], ["part.1"]):
        model = feeding_sum()
        model.fc = nn.Linear(16, 10)
        assert batchnorms(sparsify(model, normalize=True, skip=skip)) == left


def test_a_batchnorm_of_the_images_stays() -> None:
    model = nn.Sequential(
        nn.BatchNorm2d(3), nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(1568, 9)
    )
    assert batchnorms(sparsify(model, normalize=True)) == ["0"]


def test_hidden_linear_layers_become_sparse() -> None:
    model = sparsify(networks.vgg(), **FEDMEF)
    hidden = [layer for layer in sparse_layers(model).values() if isinstance(layer, SparseLinear)]
    assert [layer.geometry.shape[:2] for layer in hidden] == [(32, 64), (32, 32)]


def test_a_module_with_several_names_is_replaced_under_all_of_them() -> None:
    model = sparsify(networks.shared_activation(), **FEDMEF)
    replaced = [module for module in model.modules() if isinstance(module, fnn.ReLU)]
    assert len(replaced) == 1
    assert model.get_submodule("1") is model.get_submodule("2.2") is model.get_submodule("5") is replaced[0]


def test_a_layer_with_two_names_is_replaced_under_both() -> None:
    plain = networks.Unused()
    plain.forgotten = plain.used
    model = sparsify(Wrapped(plain), **PLAIN)
    assert model.get_submodule("part.used") is model.get_submodule("part.forgotten")
    assert isinstance(model.get_submodule("part.used"), SparseConv2d)


def test_a_model_keeps_its_mode() -> None:
    assert not any(module.training for module in sparsify(networks.vgg().eval(), **FEDMEF).modules())
    assert all(module.training for module in sparsify(networks.vgg().train(), **FEDMEF).modules())


def test_a_converted_network_can_be_copied_saved_and_loaded() -> None:
    model = sparsify(networks.preact_resnet(), **FEDMEF)
    twin = copy.deepcopy(model)
    other = sparsify(networks.preact_resnet(), **FEDMEF, seed=5)
    images, _ = batch()
    assert torch.equal(twin(images), model(images))
    assert not torch.equal(other(images), model(images))
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(images), model(images))


def left_as_they_are() -> dict[str, tuple[nn.Module, str]]:
    """Each with the name and the reason under which it is listed."""
    weight_norm = nn.utils.parametrizations.weight_norm(nn.Conv2d(8, 8, 1))
    return {
        "GroupNorm": (nn.GroupNorm(2, 8), "'part': GroupNorm is not converted"),
        "ConvTranspose2d": (nn.ConvTranspose2d(8, 8, 1), "'part': ConvTranspose2d is not converted"),
        "PReLU": (nn.PReLU(), "'part': PReLU is not converted"),
        "weight norm": (weight_norm, "'part': its weight is parametrised"),
        "convolution of its own": (
            Standardized(8, 8, 3),
            "'part': Standardized has a forward() of its own (styles.py line ",
        ),
        "unused layer": (networks.Unused(), "'part.forgotten': forward() never calls it"),
        "F.conv2d": (networks.FunctionalConvolution(), "'conv2d in part.forward()': sparsify swaps modules"),
        "own parameter": (networks.OwnParameter(), "'part': it has parameters of its own"),
        "reflecting padding": (
            nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"),
            "'part': padding_mode='reflect' is not supported",
        ),
        "one-sided padding": (
            nn.Conv2d(8, 8, 2, padding="same"),
            "'part': padding='same' with an even kernel",
        ),
    }


class Ours(Wrapped):
    """With a layer that can be sparse, whatever becomes of the part."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__(part)
        self.fc = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 10))  # type: ignore[assignment]


@pytest.mark.parametrize("name", left_as_they_are())
@pytest.mark.parametrize("options", [FEDMEF, PLAIN])
@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
def test_what_cannot_be_converted_is_listed_and_left_as_it_is(name: str, options: dict[str, Any]) -> None:
    part, listed = left_as_they_are()[name]
    model = Ours(part)
    state = copy.deepcopy(part.state_dict())
    conversion = conversion_of(sparsify(model, **options, check=True))
    assert conversion is not None
    assert conversion.checked
    assert listed in str(conversion)
    assert model.part is part
    kept = {
        key: tensor for key, tensor in part.state_dict().items() if not key.startswith(("conv.", "used."))
    }
    assert all(torch.equal(tensor, state[key]) for key, tensor in kept.items())


@pytest.mark.parametrize(
    "part",
    [
        networks.InPlaceMethod,
        networks.OverwrittenShortcut,
        networks.OverwrittenByFunction,
        networks.InPlaceFunction,
    ],
)
@pytest.mark.parametrize("options", [FEDMEF, PLAIN])
def test_what_works_in_place_does_so_afterwards(part: Any, options: dict[str, Any]) -> None:
    model = sparsify(Ours(part()), **options, check=True)
    images, labels = batch()
    nn.functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]


def test_a_branch_on_values_needs_an_example_or_is_skipped() -> None:
    model = Ours(networks.DataDependent())
    before = dict(model.named_modules())
    with pytest.raises(UserError, match=r"'part' \(DataDependent\), networks\.py line \d+: .*control flow"):
        sparsify(model)
    assert dict(model.named_modules()) == before
    sparsify(model, skip=["part"])
    assert isinstance(model.part.conv, nn.Conv2d)
    followed = sparsify(Ours(networks.DataDependent()), example=batch()[0])
    assert "fc.0" in sparse_layers(followed)


def test_where_nothing_can_be_sparse_the_reason_is_said() -> None:
    model = Wrapped(Standardized(8, 8, 3))
    before = dict(model.named_modules())
    with pytest.raises(
        UserError, match=r"no layer that it could make sparse: 'part' \(Standardized\): .*line"
    ):
        sparsify(model)
    assert dict(model.named_modules()) == before


def test_a_part_that_is_sparse_already_is_named_or_skipped() -> None:
    with pytest.raises(UserError, match="'part': it is sparse already"):
        sparsify(Ours(SparseConv2d(8, 8, 1)))
    sparsify(Ours(SparseConv2d(8, 8, 1)), skip=["part"])


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_weight_norm_of_the_old_kind_is_left_too() -> None:
    model = Ours(nn.utils.weight_norm(nn.Conv2d(8, 8, 1)))
    conversion = conversion_of(sparsify(model))
    assert conversion is not None
    assert conversion.left["part"] == "its weight is parametrised"


def test_a_layer_with_code_of_its_own_keeps_it_around_sparse_weights() -> None:
    model = sparsify(Ours(networks.OwnConvolution(8, 8, 1)), **FEDMEF, check=True)
    assert type(model.part) is networks.OwnConvolution
    assert sparse_layers(model)["part.sparse"].active_count == 16  # two a filter
    assert not any(name.startswith("part.weight") for name in model.state_dict())
    twin = copy.deepcopy(model)
    images, labels = batch()
    assert torch.equal(twin(images), model(images))
    nn.functional.cross_entropy(twin(images), labels).backward()  # type: ignore[no-untyped-call]
    assert sparse_layers(twin)["part.sparse"].values.grad is not None


def test_layers_with_hooks_are_left_alone() -> None:
    model = Ours(nn.Conv2d(8, 8, 1))
    model.part.register_forward_hook(lambda module, args, output: output * 2)
    conversion = conversion_of(sparsify(model, **FEDMEF))
    assert conversion is not None
    assert conversion.left == {"part": "it has hooks"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sparsity": 1.0}, "sparsity = 1.0"),
        ({"activation_sparsity": 1.0}, "activation_sparsity = 1.0"),
        ({"scaling": "other", "normalize": True}, "scaling = 'other'"),
        ({"distribution": "other"}, "distribution = 'other'"),
        ({"initialization": "other"}, "initialization = 'other'"),
        ({"keep_dense": ["layer9"]}, "keep_dense: no module of ResNet matches 'layer9'"),
        ({"skip": ["layer9.*"]}, "skip: no module of ResNet matches 'layer9.*'"),
        ({"sparsity": 0.9999}, "leaves no weight in 'layer1.0.conv1'"),
    ],
)
def test_a_wrong_option_is_named_and_changes_nothing(options: dict[str, Any], message: str) -> None:
    model = own("resnet18")
    before = dict(model.named_modules())
    with pytest.raises(UserError, match=re.escape(message)):
        sparsify(model, **{"normalize": True, **options})
    assert dict(model.named_modules()) == before


def test_a_network_without_layers_is_refused() -> None:
    with pytest.raises(UserError, match="no convolution or linear layer in Sequential"):
        sparsify(nn.Sequential(nn.ReLU(), nn.Flatten()))


def test_a_network_cannot_be_made_sparse_twice() -> None:
    model = sparsify(own("resnet18"))
    with pytest.raises(UserError, match="sparse already"):
        sparsify(model)


def test_a_sparse_classifier_is_not_normalised() -> None:
    model = build_model("small_cnn", classes=10, channels=1, width=4, seed=0)
    layers = sparse_layers(sparsify(model, sparsity=0.5, normalize=True, keep_dense=[]))
    *hidden, classifier = layers.values()
    assert classifier.geometry.normalization is None
    assert all(layer.geometry.normalization is not None for layer in hidden)


def test_normalising_never_kills_a_filter() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(32, 2))
    sparsify(model, sparsity=0.998, normalize=True)
    layer = sparse_layers(model)["2"]
    assert layer.active_count == 16  # 0.2 % would be one weight
    assert (layer.dense_weight().flatten(1).count_nonzero(1) == 2).all()


def test_filters_of_one_weight_are_left_with_their_norm() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 8, 1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1), nn.Flatten(), nn.Linear(32, 2)
    )
    conversion = conversion_of(sparsify(model, normalize=True, example=torch.randn(2, 1, 2, 2)))
    assert conversion is not None
    assert conversion.left["0"] == "its filters have one weight each and cannot be normalised"
    assert batchnorms(model) == ["1"]


def test_a_class_in_place_of_a_network_is_to_be_called() -> None:
    wrong: Any = networks.OtherMobileNet
    with pytest.raises(UserError, match=r"OtherMobileNet: a class; call it for a network: OtherMobileNet\("):
        sparsify(wrong)
    wrong = "resnet18"
    with pytest.raises(UserError, match=r"model = a str: give a torch\.nn\.Module"):
        sparsify(wrong)
