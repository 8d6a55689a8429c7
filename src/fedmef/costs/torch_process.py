"""A device on PyTorch in a process of its own: prints its most resident bytes and when each step ended.

The counterpart of `fedmef.device`. The question is JSON: the experiment, whose own network code may be
needed, files of messages and of answers, and a folder of data.
"""

import json
import sys
from pathlib import Path
from typing import Any

from fedmef.costs.step_times import note_steps
from fedmef.device.backend import backend_for
from fedmef.device.device import Device
from fedmef.device.own_data import open_own_data
from fedmef.device.resident import give_back_freed_memory, peak_resident
from fedmef.errors import UserError
from fedmef.experiment.settings import make_experiment
from fedmef.methods import find_method
from fedmef.nn.backend import TorchBackend
from fedmef.wire.files import write_atomically


def train(question: dict[str, Any]) -> None:
    """Every message, one after the other."""
    experiment = make_experiment({**question["experiment"], "backend": "torch", "accelerator": "cpu"})
    samples = open_own_data(question["data"], Path(question["data"]))
    device = Device(
        0,
        samples,
        lambda network: backend_for(experiment, network),
        find_method=find_method,
        most_weights=None,
        most_values=None,
    )
    for message, answer in zip(question["messages"], question["answers"], strict=True):
        write_atomically(Path(answer), device.train(Path(message).read_bytes()))


def main() -> int:
    """Exit code 2 for a mistake in the experiment."""
    give_back_freed_memory()
    noted = note_steps(TorchBackend)
    try:
        train(json.loads(sys.argv[1]))
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(peak_resident(), *noted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
