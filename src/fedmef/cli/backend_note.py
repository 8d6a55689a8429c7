"""Says at the start what keeps a run from the native kernels: its method, or a call of its network."""

from rich.console import Console

from fedmef.device.choice import why_only_torch
from fedmef.errors import printable
from fedmef.experiment.settings import Experiment
from fedmef.runs.callbacks import Callback
from fedmef.runs.directory import Run
from fedmef.sparsity.network import Network


def note_backend(console: Console, experiment: Experiment, network: Network) -> None:
    """One line if every device needs PyTorch."""
    if reason := why_only_torch(experiment, network):
        line = printable(f"fedmef: every device needs PyTorch: {reason}")
        console.print(line, markup=False, highlight=False, soft_wrap=True)


class BackendNote(Callback):
    """Says it when a run begins."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def run_begins(self, run: Run) -> None:
        note_backend(self._console, run.experiment, run.network)
