"""Bytes of the real messages between the server and one device, measured in a round of the method's own."""

from fedmef.costs.exchange import MeasuredExchange
from fedmef.costs.noise import noise_model, noise_samples
from fedmef.device.backend import backend_for
from fedmef.device.device import Device
from fedmef.experiment.settings import Experiment
from fedmef.methods import find_method
from fedmef.wire.broadcast import encode_broadcast
from fedmef.wire.job import Job

FEWEST_IMAGES = 32  # fewer leave pruned positions of small maps without a gradient, and fewer scores to send


def measure_exchange(
    experiment: Experiment, image_shape: tuple[int, int, int], classes: int
) -> MeasuredExchange:
    """Send a device of the experiment its model, let it take a step on noise, and take its answer.

    One batch of the experiment's size, or of 32 images if that is more. How long a device trains makes no
    difference to what its messages weigh.
    """
    images = max(experiment.batch_size, FEWEST_IMAGES)
    short = experiment.model_copy(
        update={
            **{"accelerator": "cpu", "local_epochs": 1, "batch_size": images, "augment": False},
            "learning_rate": 1e-3,  # a step on noise must not diverge
        }
    )
    model, method = noise_model(short, image_shape, classes), find_method(short.method)()
    backend = backend_for(short, model.network)
    device = Device(
        0,
        noise_samples(images, image_shape, classes),
        lambda _: backend,
        find_method=find_method,
        most_weights=None,
        most_values=None,
    )

    def exchanged(job: Job) -> tuple[int, int]:
        message = encode_broadcast(model, job)
        return len(message), len(device.train(message))

    adjusting = method.job(short, short.adjust_every)
    return MeasuredExchange(
        *exchanged(method.job(short, 0)), *(exchanged(adjusting) if adjusting.adjusts else (None, None))
    )
