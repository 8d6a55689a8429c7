"""What a finished run's model says of image files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedmef.device.backend import backend_for
from fedmef.device.own_data import decoded_pixels
from fedmef.federation.consent import check_consent
from fedmef.runs.directory import Run
from fedmef.wire.job import CROSS_ENTROPY

BATCH_SIZE = 64


def predict_files(run: Run, files: Sequence[Path], *, allow_code: bool = False) -> NDArray[np.float64]:
    """The probability of every class [files, classes]; images are resized to what the network takes."""
    model = run.model()
    if model.network.opaque is not None:
        check_consent(run, ("model", "method"), allow_code)
    experiment = run.experiment.model_copy(update={"backend": "auto", "loss": CROSS_ENTROPY})
    backend = backend_for(experiment, model.network)
    backend.load(model.state)
    rows = []
    for start in range(0, len(files), BATCH_SIZE):
        images = np.stack(list(decoded_pixels(files[start : start + BATCH_SIZE], model.network.input.shape)))
        logits = backend.predict(images).astype(np.float64)
        likely = np.exp(logits - logits.max(1, keepdims=True))
        rows.append(likely / likely.sum(1, keepdims=True))
    return np.concatenate(rows)
