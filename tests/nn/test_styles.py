"""Networks in many styles: converted, they compute what their authors wrote, or stay exactly as they were."""

import copy
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fedmef.errors import ConversionError
from fedmef.nn import SparseConv2d, conversion_of, plan, sparse_layers, sparsify
from fedmef.nn.densify import densify
from tests.nn.styles import RELU, STYLES, Body, NormReLU, build_style, conv, example_for, head, unit

FEDMEF: dict[str, Any] = {"sparsity": 0.9, "normalize": True, "activation_sparsity": 0.9, "quiet": True}
NOT_ON_A_CPU = {"SyncBatchNorm"}  # in training
NOT_DIFFERENTIABLE = {"in place: the norm's input"}  # BatchNorm's gradient needs it as it was
NOTHING_TO_MAKE_SPARSE = {"nothing but weight standardisation"}
CONVERTED = [name for name in STYLES if name not in NOTHING_TO_MAKE_SPARSE]


def made(name: str) -> nn.Module:
    """A network that has run once: lazy modules can be copied then."""
    model = build_style(name)
    with torch.no_grad():
        model.eval()(*example_for(name))
    return model.train()


@pytest.mark.parametrize("name", CONVERTED)
def test_without_sparsity_everybodys_network_computes_what_it_did(name: str) -> None:
    for training in (False,) if name in NOT_ON_A_CPU else (False, True):
        plain = made(name).double().train(training)
        with torch.no_grad():  # statistics that are not those of a new network
            for part in plain.modules():
                if isinstance(part, nn.BatchNorm2d):
                    part.running_mean.normal_().mul_(0.1)  # type: ignore[union-attr]
        images = tuple(value.double() for value in example_for(name))
        converted = sparsify(copy.deepcopy(plain), sparsity=0.0, quiet=True, example=images)
        assert sparse_layers(converted)
        expected, found = (
            [leaf for leaf in tree_leaves(_seeded(model, *copy.deepcopy(images))) if isinstance(leaf, Tensor)]
            for model in (plain, converted)
        )
        torch.testing.assert_close(found, expected)
        if name in NOT_DIFFERENTIABLE:
            continue
        wanted, got = _gradients(plain, expected), _gradients(converted, found)
        assert wanted.keys() == got.keys()
        for parameter in wanted:
            torch.testing.assert_close(got[parameter], wanted[parameter], msg=parameter)


@pytest.mark.parametrize("name", CONVERTED)
def test_densified_everybodys_network_computes_the_same(name: str) -> None:
    images = example_for(name)
    sparse = sparsify(made(name), example=images, **FEDMEF).eval()
    dense = densify(sparse)
    assert not sparse_layers(dense)
    expected, found = (
        [leaf for leaf in tree_leaves(_seeded(model, *copy.deepcopy(images))) if isinstance(leaf, Tensor)]
        for model in (sparse, dense)
    )
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def _seeded(model: nn.Module, *images: Tensor) -> Any:
    torch.manual_seed(1)  # of dropout
    return model(*images)


def _gradients(model: nn.Module, found: list[Tensor]) -> dict[str, Tensor]:
    """By the names that parameters have in a plain network."""
    model.zero_grad()
    torch.stack([output.square().sum() for output in found]).sum().backward()  # type: ignore[no-untyped-call]
    return {
        _plain_name(name): parameter.grad.flatten()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def _plain_name(parameter: str) -> str:
    name = parameter.removesuffix(".values").removesuffix(".weight")
    return name.removesuffix(".sparse").replace(".sparse.bias", ".bias")


@pytest.mark.parametrize("name", CONVERTED)
def test_everybodys_network_is_converted_checked_and_trains(name: str) -> None:
    model = sparsify(build_style(name), **FEDMEF, example=example_for(name), check=True)
    conversion = conversion_of(model)
    assert conversion is not None
    assert conversion.checked
    assert conversion.sparse
    assert conversion.kept_ratio is not None or name in NOT_ON_A_CPU
    if name in RELU:
        assert conversion.kept_ratio is not None
        assert conversion.kept_ratio <= 0.15
    model.train(name not in NOT_ON_A_CPU)
    found = [leaf for leaf in tree_leaves(model(*example_for(name))) if isinstance(leaf, Tensor)]
    got = _gradients(model, found)
    assert all(gradient.isfinite().all() for gradient in got.values())
    assert {_plain_name(f"{layer}.values") for layer in sparse_layers(model)} <= got.keys()


REFUSED = ["a branch on values", "a layer made at first", *NOTHING_TO_MAKE_SPARSE]


@pytest.mark.parametrize("name", [name for name in STYLES if name not in (*REFUSED, "lazy modules")])
def test_without_an_example_a_network_is_converted_too(name: str) -> None:
    model = build_style(name)
    drawn = torch.get_rng_state()
    assert sparse_layers(sparsify(model, **FEDMEF))
    assert torch.equal(torch.get_rng_state(), drawn)


@pytest.mark.parametrize("name", REFUSED)
def test_an_error_names_module_and_line_and_leaves_the_model_as_it_was(name: str) -> None:
    model = build_style(name)
    before = {part: type(module) for part, module in model.named_modules()}
    tensors = {key: (id(tensor), tensor.clone()) for key, tensor in model.state_dict(keep_vars=True).items()}
    drawn = torch.get_rng_state()
    with pytest.raises(ConversionError, match=r"styles\.py line \d+"):
        sparsify(model, **FEDMEF)
    assert {part: type(module) for part, module in model.named_modules()} == before
    after = model.state_dict(keep_vars=True)
    assert list(after) == list(tensors)
    for key, (identity, value) in tensors.items():
        assert id(after[key]) == identity
        assert torch.equal(after[key], value)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.equal(torch.get_rng_state(), drawn)


def kinds(model: nn.Module) -> list[str]:
    return [type(module).__name__ for module in model.modules()]


def test_an_activation_inside_a_norm_stays_when_the_norm_goes() -> None:
    model = sparsify(build_style("norm and SiLU in one"), **FEDMEF)
    assert kinds(model).count("SiLU") == 3
    assert not [name for name, _ in model.named_parameters() if "1.1." in name or "2.1." in name]
    assert not list(model.buffers()) or all(buffer.dtype == torch.uint8 for buffer in model.buffers())


def test_every_head_is_a_classifier() -> None:
    model = sparsify(build_style("two heads"), **FEDMEF)
    for name in ("fc", "other.2"):
        assert type(model.get_submodule(name)) is nn.Linear
        assert len(model.get_submodule(name)._forward_pre_hooks) == 1  # its features are normalised
    assert set(sparse_layers(model)) == {"stem.0", "block.0", "last_block.0", "other.0"}


def test_first_and_last_layers_can_be_named() -> None:
    model = sparsify(build_style("two heads"), **FEDMEF, first=["stem.*", "block.0"], last=["fc"])
    layers = sparse_layers(model)
    assert {name for name, layer in layers.items() if layer.density == 1} == {"stem.0", "block.0"}
    assert layers["block.0"].cache.sparsity == 0
    assert layers["other.2"].geometry.normalization is not None
    with pytest.raises(ConversionError.__mro__[1], match=r"last: \['block.2'\] names no convolution"):
        sparsify(build_style("two heads"), **FEDMEF, last=["block.2"])


@pytest.mark.parametrize("names", [["1.alpha"], ["*.shift"]])
def test_a_block_whose_parameter_is_skipped_is_sparse_all_the_same(names: list[str]) -> None:
    model = sparsify(build_style("parameters of a block"), **FEDMEF, skip=names)
    assert {"1.first", "1.second", "2.first", "2.second"} <= sparse_layers(model).keys()
    assert isinstance(model.get_parameter("1.alpha"), nn.Parameter)


def test_gates_stay_as_they_are_and_are_listed() -> None:
    model = sparsify(build_style("convolutional gates"), **FEDMEF)
    conversion = conversion_of(model)
    assert conversion is not None
    assert set(conversion.left) == {"1.reduce", "1.expand", "2.reduce", "2.expand"}
    assert type(model.get_submodule("1.reduce")) is nn.Conv2d


def test_a_norm_after_another_kind_of_layer_stays() -> None:
    other = nn.Sequential(nn.ConvTranspose2d(16, 16, 2, 2), nn.BatchNorm2d(16), nn.ReLU())
    model = nn.Sequential(
        unit(3, 16), other, unit(16, 16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)
    )
    sparsify(model, **FEDMEF)
    assert kinds(model).count("BatchNorm2d") == 1
    assert kinds(other).count("BatchNorm2d") == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_part_that_is_compiled_stays_and_is_listed() -> None:
    model = nn.Sequential(unit(3, 16), torch.jit.script(unit(16, 16)), unit(16, 16), head(16))
    conversion = conversion_of(sparsify(model, **FEDMEF, example=example_for("")))
    assert conversion is not None
    assert conversion.left == {"1": "it is compiled by TorchScript"}
    assert conversion.sparse == ("2.0",)


class LeftOutAtRandom(Body):
    """Decides with Python's own generator, while it is trained."""

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        if not self.training or random.random() < 0.5:
            x = self.block(x)
        return self.fc(self.last_block(x).mean((2, 3)))


@pytest.mark.parametrize("seed", range(4))
def test_layers_that_are_left_out_at_random_are_found_all_the_same(seed: int) -> None:
    random.seed(seed)
    before = random.getstate()
    model = sparsify(LeftOutAtRandom(), **FEDMEF, example=example_for(""), check=True)
    assert {"block.0", "last_block.0"} <= sparse_layers(model).keys()
    assert random.getstate() == before


def test_a_wrong_conversion_is_noticed_and_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_style("in place: plus")
    before = kinds(model)
    monkeypatch.setattr(plan, "without_norm", lambda *args: nn.Identity())
    with pytest.raises(ConversionError, match=r"in evaluation what '2\.conv' reads differs by \d"):
        sparsify(model, **FEDMEF, example=example_for(""))
    assert kinds(model) == before
    monkeypatch.undo()
    assert isinstance(sparsify(model, **FEDMEF).get_submodule("1.conv"), SparseConv2d)


def test_a_lost_activation_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [nn.Sequential(conv(16, 16), NormReLU(16)) for _ in range(12)]  # of whose signal little is left
    model = nn.Sequential(unit(3, 16), *parts, head(16))
    monkeypatch.setattr(plan, "without_norm", lambda *args: nn.Identity())
    with pytest.raises(ConversionError, match=r"what '2\.0' reads differs"):
        sparsify(model, **FEDMEF, check=True)


def test_lazy_modules_are_lazy_again_after_an_error() -> None:
    model = build_style("lazy modules")
    with pytest.raises(ConversionError, match=r"'0' \(LazyConv2d\): it has no shape yet; give example="):
        sparsify(model, **FEDMEF)
    with pytest.raises(ConversionError.__mro__[1], match=r"sparsity = 0\.9999"):
        sparsify(model, sparsity=0.9999, example=example_for(""))
    assert kinds(model).count("LazyConv2d") == 2
    assert kinds(model).count("LazyBatchNorm2d") == 1
    assert model(torch.randn(2, 1, 16, 16)).shape == (2, 10)  # it takes whatever comes first


def test_an_example_that_does_not_run_is_said_with_module_and_line() -> None:
    model = build_style("asserts on shapes")
    with pytest.raises(
        ConversionError, match=r"Asserts on the example: in Asserts, styles\.py line \d+: wrong images"
    ):
        sparsify(model, example=torch.randn(2, 3, 16, 12))
    with pytest.raises(ConversionError, match=r"in 'stem\.0' \(Conv2d\)"):
        sparsify(build_style("two heads"), example=torch.randn(2, 4, 16, 16))


def test_what_was_achieved_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    model = sparsify(build_style("GroupNorm"), normalize=True, activation_sparsity=0.9)
    said = capsys.readouterr().err
    assert said.splitlines() == [
        "sparsify: parameters 0.21x, kept activations 0.39x",
        "  all weights kept: '0.0', '3.2'",
        "  left as it is: '1.1', '2.1': GroupNorm is not converted",
        "  for the backward pass of 2 images it still keeps 309.5 kB of 786.8 kB:",
        "    2 x GroupNorm: 262.3 kB (most in '1.1', 131.1 kB)",
        "    3 x SparseConv2d: 34.8 kB (most in '1.0', 17.3 kB)",
    ]
    conversion = conversion_of(model)
    assert conversion is not None
    assert sum(keeper.size for keeper in conversion.keepers) == conversion.kept
    assert {keeper.name for keeper in conversion.keepers if keeper.kind == "GroupNorm"} == {"1.1", "2.1"}
    assert str(conversion) == said.strip()
    assert conversion_of(copy.deepcopy(model)) == conversion
    assert conversion_of(nn.ReLU()) is None


def test_kept_bytes_are_those_that_autograd_keeps() -> None:
    conversion = conversion_of(sparsify(build_style("ReLU6"), **FEDMEF, example=torch.randn(2, 3, 8, 8)))
    assert conversion is not None
    assert conversion.measured_on == (2, 3, 8, 8)
    maps = 2 * 16 * 64 * 4  # bytes of one
    # of each of three units: what BatchNorm, ReLU6 and, but for the images, the convolutions read
    assert conversion.kept_before is not None
    assert 8 * maps <= conversion.kept_before <= 8 * maps + 2000


def test_a_network_can_be_converted_in_silence(capsys: pytest.CaptureFixture[str]) -> None:
    sparsify(build_style("ReLU6"), quiet=True)
    sparsify(build_style("ReLU6"), consume=True)
    assert capsys.readouterr() == ("", "")
