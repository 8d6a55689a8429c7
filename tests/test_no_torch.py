"""The core runs where there is no PyTorch, and the command line answers before anything heavy is loaded."""

import importlib
import json
import pkgutil
import subprocess
import sys

import pytest

import fedmef.methods
from fedmef.device.choice import missing_kernels
from fedmef.errors import naming_the_extra

METHODS = [
    f"fedmef.methods.{module.name}"
    for module in pkgutil.iter_modules(fedmef.methods.__path__)
    if module.name != "prunefl"  # it computes the importance of weights with PyTorch's autograd
]
CORE = [
    "fedmef.device",
    "fedmef.device.device",
    "fedmef.wire",
    "fedmef.wire.broadcast",
    "fedmef.wire.update",
    "fedmef.methods",
    *METHODS,
    "fedmef.sparsity",
    "fedmef.federation",
    "fedmef.federation.api",
    "fedmef.federation.engines.processes",
    "fedmef.federation.engines.inline",
    "fedmef.experiment",
    "fedmef.experiment.settings",
    "fedmef.runs.directory",
    "fedmef.data",
]
# What cannot be imported where the extension is not built.
NATIVE = ["fedmef.native._kernels", "fedmef.native.assembly", "fedmef.device.native_backend"]
PACKAGES = ["sparsity", "wire", "experiment", "data", "native", "device", "runs", "federation"]

# Imports one module after the other, and prints which of the unwanted packages are there after each.
PROGRAM = """
import importlib, json, sys
modules, unwanted = json.loads(sys.argv[1])
loaded = {}
for module in modules:
    importlib.import_module(module)
    loaded[module] = [name for name in unwanted if name in sys.modules]
print(json.dumps(loaded))
"""


def loaded_by(modules: list[str], unwanted: list[str]) -> dict[str, list[str]]:
    """What a fresh interpreter has loaded after each of these imports, without those that load nothing."""
    command = [sys.executable, "-c", PROGRAM, json.dumps([modules, unwanted])]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return {module: found for module, found in json.loads(ended.stdout).items() if found}


def every_module(package: str) -> list[str]:
    """The modules of a package, without those of Flower, which may import what they like."""
    found = pkgutil.walk_packages([f"{fedmef.__path__[0]}/{package}"], f"fedmef.{package}.")
    unbuilt = NATIVE if missing_kernels() else []
    return [module.name for module in found if "flower" not in module.name and module.name not in unbuilt]


def test_there_are_methods_to_import() -> None:
    assert {"fedmef.methods.fedmef", "fedmef.methods.fedavg", "fedmef.methods.base"} <= set(METHODS)


def test_the_core_does_not_import_pytorch() -> None:
    assert loaded_by(CORE, ["torch"]) == {}


def test_the_native_backend_does_not_import_pytorch() -> None:
    if missing_kernels():
        pytest.skip(missing_kernels())
    assert loaded_by(NATIVE, ["torch"]) == {}


def test_no_module_of_the_core_imports_pytorch() -> None:
    modules = [module for package in PACKAGES for module in every_module(package)]
    assert len(modules) > 60
    assert loaded_by(modules, ["torch"]) == {}


def test_the_command_line_loads_nothing_heavy_before_it_must() -> None:
    unwanted = ["numpy", "pydantic", "torch", "safetensors", "matplotlib"]
    assert loaded_by(["fedmef", "fedmef.errors", "fedmef.cli", "fedmef.cli.app"], unwanted) == {}


def test_a_device_needs_neither_pydantic_nor_what_people_look_at() -> None:
    assert loaded_by(["fedmef.device.device"], ["pydantic", "rich", "typer", "matplotlib", "PIL"]) == {}


# Runs code where nothing of the extra `train` can be imported.
WITHOUT_TRAIN = """
import sys
from importlib.abc import MetaPathFinder
from fedmef.errors import TRAIN

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in TRAIN:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)

sys.meta_path.insert(0, Missing())
import fedmef
from fedmef.errors import NotInstalledError

"""


def run_without_train(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_TRAIN + code], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "code",
    [
        "fedmef.sparsify",
        "fedmef.SparseConv2d",
        "fedmef.run(fedmef.Experiment())",
        "fedmef.run(fedmef.Experiment(backend='native'))",
        "from fedmef.methods import find_method; find_method('prunefl')",
    ],
)
def test_what_the_light_installation_lacks_is_named_with_its_extra(code: str) -> None:
    ended = run_without_train(f"try:\n    {code}\nexcept NotInstalledError as error:\n    print(error)")
    assert "torch is not installed" in ended.stdout, ended.stderr[-2000:]
    assert "pip install 'fedmef[train]'" in ended.stdout


def test_another_missing_module_is_not_taken_for_one_of_the_extra() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), naming_the_extra():
        importlib.import_module("no_such_module")


def test_the_command_of_the_light_installation_says_in_one_line_what_to_install() -> None:
    ended = run_without_train("from fedmef.__main__ import command\ncommand()")
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.count("\n") == 1
    assert "pip install 'fedmef[train]'" in ended.stderr


def test_everything_of_a_device_can_be_imported_in_the_light_installation() -> None:
    packages = ["sparsity", "wire", "experiment", "native", "device"]
    modules = [*METHODS, *(module for package in packages for module in every_module(package))]
    ended = run_without_train("".join(f"import {module}\n" for module in modules))
    assert ended.returncode == 0, ended.stderr[-2000:]


def test_the_names_of_the_package_are_all_there() -> None:
    """Each is imported when it is first used, so a wrong place would be noticed late."""
    for name in fedmef.__all__:
        assert getattr(fedmef, name) is not None
    assert {*fedmef.__all__, "__version__"} == set(dir(fedmef))
    assert fedmef.__version__
