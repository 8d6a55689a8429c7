"""A device on PyTorch in a process of its own: prints its most resident bytes and each step's seconds.

The counterpart of `fedmef.device`. The question is JSON: the experiment, whose own network code may be
needed, and for each round the files of the message and of the answer, and a folder of data.
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
    for message, answer, data in question["rounds"]:
        device = Device(
            0,
            open_own_data(data, Path(data)),
            lambda network: backend_for(experiment, network),
            find_method=find_method,
            most_weights=None,
            most_values=None,
        )
        write_atomically(Path(answer), device.train(Path(message).read_bytes()))
        del device  # before the next one is made


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
