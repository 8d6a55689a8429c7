"""A method without PyTorch whose devices 1, of round 0, want more memory than they are given."""

from typing import TYPE_CHECKING

import numpy as np

from fedmef.methods import Extras, Job, Method

if TYPE_CHECKING:
    from fedmef.device.training import LocalTraining


class Hungry(Method):
    """Device 1 takes 400 MB in round 0."""

    def train(self, local: "LocalTraining", job: Job) -> Extras:
        taken = np.ones(50_000_000 if local.device == 1 and job.round == 0 else 1)
        extras = super().train(local, job)
        taken.fill(0)
        return extras
