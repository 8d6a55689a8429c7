"""What one training step of a run's network keeps alive, measured."""

import torch

from fedmef.costs import bytes_kept_for_backward
from fedmef.engines import prepared_model
from fedmef.methods import build_method
from fedmef.run_directory import Run


def training_memory(run: Run) -> int:
    """Bytes of parameters, masks, gradients, and of what a forward pass leaves for the backward pass.

    Of a batch of noise, on the CPU, with the run's network, method and batch size, as they are at the start.
    The largest gradients at pruned positions, which an adjustment round holds as well, are not among them.
    """
    experiment = run.experiment.model_copy(update={"device": "cpu"})
    channels, height, width = run.summary["image_shape"]
    model = prepared_model(experiment, build_method(experiment), run.summary["classes"], channels)
    shape = (experiment.batch_size, channels, height, width)
    images = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    gradients = sum(parameter.nbytes for parameter in model.parameters())
    stored = sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])
    return stored + gradients + bytes_kept_for_backward(model.train(), images)
