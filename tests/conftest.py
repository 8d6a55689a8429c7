"""What every test process needs."""

import signal

import torch

from fedmef.device.choice import missing_kernels

# xdist runs several processes, and threads that wait for cores cost minutes.
torch.set_num_threads(1)

# A shell's & and nohup make a process ignore Ctrl-C, and all that it starts; some tests press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    """Whether the native kernels are tested; their tests are skipped where they are not built."""
    return f"native kernels: {missing_kernels() or 'built'}"
