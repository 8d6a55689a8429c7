"""What every test process needs."""

import signal

import torch

# xdist runs several processes, and threads that wait for cores cost minutes.
torch.set_num_threads(1)

# A shell's & and nohup make a process ignore Ctrl-C, and all that it starts; some tests press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
