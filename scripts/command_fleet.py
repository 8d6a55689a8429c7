r"""A fleet without Flower: a command of yours carries a message to a device, and its answer back.

    python scripts/command_fleet.py EXPERIMENT.toml --out runs/fleet --command COMMAND

COMMAND is run in a shell, for all devices of a round at the same time. In it, {device} is the device's
number, {message} the file to bring to it, and {answer} the file that must be there at the end. With ssh:

    scp -q {message} pi-{device}:message &&
    ssh pi-{device} 'env/bin/python -m fedmef.device message answer --data images --store held \
        --number {device}' &&
    scp -q pi-{device}:answer {answer}

Devices train on data of their own; the server's test data score the model. Where the command fails, or takes
longer than the experiment's `deadline`, that device's update is lost, and no other. The device's program ends
with 75 when it no longer holds what the message builds on; a command that ends so is run again, with
everything. Ctrl-C stops the run, and --resume continues it.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from fedmef.device.lost import LONGEST_REASON, NEEDS_ALL
from fedmef.errors import FedmefError, Interrupted
from fedmef.experiment.files import read_experiment
from fedmef.federation.api import resume, run
from fedmef.federation.engines.base import Lost
from fedmef.runs.callbacks import Callback
from fedmef.runs.records import DeviceReport, Failed, Round
from fedmef.wire.container import MAXIMUM_BYTES
from fedmef.wire.files import read_bounded


class CommandEngine:
    """Carries messages by a command. What a device costs, nobody tells: there are no reports."""

    def __init__(self, command: str, deadline: float | None = None) -> None:
        self.reports: list[DeviceReport | Failed] = []
        self._command = command
        self._deadline = deadline
        self._running: set[subprocess.Popen[bytes]] = set()

    def train(self, messages: Mapping[int, bytes]) -> dict[int, bytes | Lost]:
        if not messages:
            return {}
        with ThreadPoolExecutor(len(messages)) as carriers:
            try:
                answers = list(carriers.map(self._carry, messages, messages.values()))
            except BaseException:  # such as a second Ctrl-C: no command may hold up the end
                for process in list(self._running):
                    _end(process)
                raise
        return dict(zip(messages, answers, strict=True))

    def _carry(self, device: int, content: bytes) -> bytes | Lost:
        with tempfile.TemporaryDirectory() as folder:
            message, answer = Path(folder) / "message", Path(folder) / "answer"
            message.write_bytes(content)
            command = self._command.replace("{device}", str(device))
            for name, file in (("{message}", message), ("{answer}", answer)):
                command = command.replace(name, shlex.quote(str(file)))
            said = (
                Path(folder) / "said"
            )  # a file: a pipe would wait for all who hold it, such as ssh's master
            # A group of its own, so that what the shell started ends with it.
            with said.open("wb") as errors:
                process = subprocess.Popen(
                    command, shell=True, start_new_session=True, stdin=subprocess.DEVNULL, stderr=errors
                )
            self._running.add(process)
            try:
                process.wait(self._deadline)
            except subprocess.TimeoutExpired as late:
                _end(process)
                return Lost.too_late(late.timeout)
            finally:
                self._running.discard(process)
            if process.returncode:
                words = said.read_text(errors="replace").strip().rpartition("\n")[2]
                reason = (words or f"its command ended with {process.returncode}")[:LONGEST_REASON]
                return Lost(reason, needs_all=process.returncode == NEEDS_ALL)
            try:
                return read_bounded(answer, MAXIMUM_BYTES)
            except (OSError, FedmefError) as error:
                return Lost(f"its command brought no answer: {error}"[:LONGEST_REASON])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


def _end(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Progress(Callback):
    """A line for every round."""

    def round_done(self, record: Round, model: object = None) -> None:
        accuracy = "" if record.test_accuracy is None else f", test accuracy {record.test_accuracy:.2%}"
        print(
            f"round {record.number}: {len(record.lost)} lost, loss {record.train_loss}{accuracy}", flush=True
        )
        for failed in record.lost:
            print(f"  device {failed.device}: {failed.reason}", flush=True)


def main() -> None:
    """Run or resume an experiment over such a fleet."""
    parser = argparse.ArgumentParser(description="A fleet whose messages a command carries.")
    parser.add_argument("experiment", type=Path, metavar="EXPERIMENT.toml")
    parser.add_argument("--command", required=True, help="with {device}, {message} and {answer}")
    parser.add_argument("--out", type=Path, required=True, help="the run's directory")
    parser.add_argument("--resume", action="store_true", help="continue the run that is there")
    options = parser.parse_args()
    try:
        experiment = read_experiment(options.experiment)
        engine = CommandEngine(options.command, experiment.deadline)
        if options.resume:
            named = experiment.model_dump(include={"method", "model", "dataset"})
            resume(options.out, named, callbacks=[Progress()], start=lambda fleet: engine, elsewhere=True)
        else:
            run(experiment, options.out, callbacks=[Progress()], start=lambda fleet: engine, elsewhere=True)
    except FedmefError as error:
        raise SystemExit(f"{parser.prog}: {error}") from None
    except Interrupted as error:
        print(f"{parser.prog}: {error}; with this command: add --resume", file=sys.stderr)
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
