"""The core runs where there is no PyTorch, and the command line answers before anything heavy is loaded."""

import json
import pkgutil
import subprocess
import sys

import pytest

import fedmef.methods
from fedmef.device.choice import missing_kernels

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


def test_the_names_of_the_package_are_all_there() -> None:
    """Each is imported when it is first used, so a wrong place would be noticed late."""
    for name in fedmef.__all__:
        assert getattr(fedmef, name) is not None
    assert {*fedmef.__all__, "__version__"} == set(dir(fedmef))
    assert fedmef.__version__
