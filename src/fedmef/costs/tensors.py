"""Bytes of tensors that a training step needs, by kind, and their peak. Measured, never estimated."""

from dataclasses import dataclass

import torch

from fedmef.costs.allocator import bytes_kept_for_backward, bytes_of_state, peak_of_tensors
from fedmef.costs.noise import ON_NOISE, noise_model, noise_samples, round_jobs
from fedmef.device.backend import backend_for
from fedmef.device.training import LocalTraining
from fedmef.experiment.settings import Experiment
from fedmef.methods import find_method
from fedmef.nn.backend import TorchBackend
from fedmef.sparsity.model import Model


@dataclass(frozen=True)
class TensorCost:
    """Bytes of a training step at the experiment's batch size, by PyTorch's own allocator.

    The parts are not all alive at one moment, so they may add up to more than `peak`.

    Attributes:
        parameters: parameters, masks and other buffers.
        gradients: of all parameters, at the end of a backward pass.
        cache: kept by autograd between forward and backward.
        peak: most bytes alive at once, in an ordinary round or one that adjusts: the batch, a layer's working
            space and what an adjustment holds included.
    """

    parameters: int
    gradients: int
    cache: int
    peak: int

    @property
    def kept(self) -> int:
        """By a step: parameters, masks, gradients and activations, without working space."""
        return self.parameters + self.gradients + self.cache


def measure_tensors(
    experiment: Experiment, shape: tuple[int, int, int], classes: int, model: Model | None = None
) -> TensorCost:
    """Measure the network of an experiment as its method prepares and trains it, on a batch of noise.

    With a `model` of such a network, nothing is built.
    """
    # On the CPU, whose allocator does the counting.
    experiment = experiment.model_copy(update={**ON_NOISE, "backend": "torch"})
    samples = noise_samples(experiment.batch_size, shape, classes, steps=2)
    model = model or noise_model(experiment, shape, classes)
    network, state = model.network, model.state
    method = find_method(experiment.method)()

    def build() -> TorchBackend:
        backend = backend_for(experiment, network)
        assert isinstance(backend, TorchBackend)
        backend.load(state)
        return backend

    def train(backend: TorchBackend) -> None:
        for job in round_jobs(experiment):
            method.train(LocalTraining(0, backend, samples, job), job)

    peak = peak_of_tensors(build, train)
    backend = build()
    module = backend.module.train()
    parameters = sum(tensor.nbytes for tensor in [*module.parameters(), *module.buffers()])
    images = backend.normalized(samples.images)
    with torch.random.fork_rng(devices=[]):
        gradients = bytes_of_state(module, images) - parameters
        return TensorCost(parameters, gradients, bytes_kept_for_backward(module, images), peak)
