"""Finding a backend by its name."""

import numpy as np
import pytest
from torch import nn

from fedmef.device import backend, choice
from fedmef.device.backend import (
    BACKENDS,
    Backend,
    backend_for,
    describe_backend,
    import_backend,
    open_backend,
    own_module,
)
from fedmef.device.choice import Choice
from fedmef.errors import UserError
from fedmef.experiment.settings import Experiment
from fedmef.nn.backend import TorchBackend
from fedmef.sparsity.network import Network
from fedmef.sparsity.operations import Opaque
from tests.device.recording import RecordingBackend
from tests.sparsity.networks import images, normalized_network, random_model

NETWORK = normalized_network()


def test_what_is_tested_with_is_a_backend() -> None:
    opened: Backend = RecordingBackend(NETWORK)  # mypy compares it with the protocol
    assert opened.network is NETWORK


def test_pytorch_is_found_by_its_name() -> None:
    assert import_backend("torch") is TorchBackend
    opened = open_backend(NETWORK, "torch")
    assert isinstance(opened, TorchBackend)
    assert opened.network is NETWORK
    assert describe_backend(opened) == "torch"


def test_the_native_backend_gets_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    class Native(RecordingBackend):
        instructions = "avx2"

        def __init__(self, network: Network, threads: int) -> None:
            super().__init__(network)
            self.threads = threads

    monkeypatch.setattr(backend, "choose_backend", lambda *_, **__: Choice("native"))
    monkeypatch.setattr(backend, "missing_kernels", str)
    monkeypatch.setattr(backend, "find_spec", lambda package: object())
    monkeypatch.setattr(backend, "load_part", lambda module, name: Native)
    assert describe_backend(open_backend(NETWORK)) == "native (avx2, 1 thread)"
    monkeypatch.setenv("FEDMEF_THREADS", "2")
    assert describe_backend(open_backend(NETWORK)) == "native (avx2, 2 threads)"


def test_a_backend_takes_numpy_arrays_and_gives_them() -> None:
    opened = open_backend(NETWORK)
    opened.load(random_model(NETWORK, 0.5).state)
    pixels = np.random.default_rng(0).integers(0, 256, (4, 1, 8, 8), dtype=np.uint8)
    logits = opened.predict(pixels)
    assert isinstance(logits, np.ndarray)
    assert logits.shape == (4, 10)
    step = opened.step(pixels, np.arange(4), 0.1)
    assert type(step.loss) is float
    assert all(type(array) is np.ndarray for array in opened.state().values())
    scores = opened.growth(pixels, np.arange(4), {"second": 3})
    assert scores["second"].positions.shape == scores["second"].gradients.shape == (3,)


def test_where_there_are_no_kernels_native_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "KERNELS", "fedmef.native._no_such_kernels")
    with pytest.raises(UserError, match="backend = 'native': the native kernels are not built"):
        open_backend(NETWORK, "native")
    with pytest.raises(UserError, match="backend = 'native'"):
        import_backend("native")
    with pytest.raises(UserError, match="backend = 'native'"):
        backend_for(Experiment(backend="native"), NETWORK)


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "find_spec", lambda package: None)
    with pytest.raises(UserError, match="backend = 'torch': the package torch is not installed"):
        open_backend(NETWORK, "torch")


def test_a_package_is_looked_for_before_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "torch", ("no_such_package_at_all", "no_such_module_either", "Backend"))
    with pytest.raises(UserError, match="the package no_such_package_at_all is not installed"):
        import_backend("torch")


def test_options_are_those_of_the_backend() -> None:
    with pytest.raises(UserError, match="accelerator = 'abacus'"):
        open_backend(NETWORK, accelerator="abacus")
    with pytest.raises(UserError, match="accelerator = 'abacus'"):
        backend_for(Experiment(accelerator="abacus"), NETWORK)


def test_a_network_with_opaque_operations_needs_its_own_code() -> None:
    strange = Network(images(1), (Opaque(name="mine", inputs=("input",), description="MyNet", shape=(10,)),))
    with pytest.raises(UserError, match="needs its own PyTorch code"):
        open_backend(strange)
    own = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    assert open_backend(strange, module=own).network is strange


def test_a_simulation_has_the_code_of_its_experiment() -> None:
    experiment = Experiment(method="fedavg", model="small_cnn", width=4)
    strange = Network(images(1), (Opaque(name="mine", inputs=("input",), description="MyNet", shape=(10,)),))
    assert isinstance(own_module(experiment, strange), nn.Module)
    opened = backend_for(experiment, strange)
    logits = opened.predict(np.zeros((2, 1, 8, 8), dtype=np.uint8))
    assert logits.shape == (2, 10)
