"""One thread for each test process: xdist runs several, and threads that wait for cores cost minutes."""

import torch

torch.set_num_threads(1)
