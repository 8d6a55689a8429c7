"""A method without PyTorch whose device 1 wants more memory than the others, in round 0."""

import os
from typing import TYPE_CHECKING

import numpy as np

from fedmef.methods import Extras, Job, Method

if TYPE_CHECKING:
    from fedmef.device.training import LocalTraining

MEGABYTES = "HUNGRY_MEGABYTES"  # an environment variable


class Hungry(Method):
    """Device 1 takes 400 MB, or as much as the environment says."""

    def train(self, local: "LocalTraining", job: Job) -> Extras:
        megabytes = int(os.environ.get(MEGABYTES, "400")) if local.device == 1 and job.round == 0 else 0
        taken = np.ones(megabytes * 125_000)
        extras = super().train(local, job)
        taken.fill(0)
        return extras
