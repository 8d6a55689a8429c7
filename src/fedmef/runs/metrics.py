"""What a run logs, round by round: `metrics.jsonl`, and in `devices.jsonl` what its devices measured.

The second is optional: a run without it, or with a damaged one, is a run all the same. Neither grows beyond
what is read again. Runs of earlier versions have the devices' reports in `metrics.jsonl`.
"""

import io
import os
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from fedmef.errors import FedmefError, FedmefWarning, UserError
from fedmef.experiment.settings import Experiment
from fedmef.runs.reading import AGAIN, read_ordinary
from fedmef.runs.records import Count, DeviceReport, Record, Round
from fedmef.wire.files import write_atomically

METRICS, DEVICES = "metrics.jsonl", "devices.jsonl"
MAXIMUM_METRICS = 2**25
MAXIMUM_DEVICES = 2**24
# Of a round in which nothing fails, of each device in it, and of each metric of the user's own.
LINE_BYTES, DEVICE_BYTES, METRIC_BYTES = 800, 8, 70
MOST_LINES = MAXIMUM_METRICS // 2 // LINE_BYTES  # rounds that `check_length` lets a run have
MOST_TABLES = 2**18  # each takes some microseconds to read; honest ones fill the file before
REPORTS = "device_reports"

Kind = TypeVar("Kind", bound=Record)


class Reports(Record):
    """A line of `devices.jsonl`."""

    round: Count
    device_reports: list[DeviceReport]


def check_length(experiment: Experiment) -> None:
    """Raise `UserError` for a run whose metrics nobody could read; half of the room is for what fails."""
    devices, metrics = DEVICE_BYTES * experiment.devices_per_round, METRIC_BYTES * len(experiment.metrics)
    expected = experiment.rounds * (LINE_BYTES + devices + metrics)
    if expected > MAXIMUM_METRICS // 2:
        raise UserError(
            f"rounds = {experiment.rounds} with devices_per_round = {experiment.devices_per_round}: "
            f"{METRICS} would have {expected:,} bytes, of at most {MAXIMUM_METRICS // 2:,}; lower one of them"
        )


def log_round(folder: Path, record: Round) -> None:
    """Append a round. Reports that no longer fit are left out: a run never stops for them."""
    reports = Reports(round=record.round, device_reports=record.device_reports)
    if reports.device_reports:
        _append(folder / DEVICES, reports.model_dump_json(), MAXIMUM_DEVICES)
    if not _append(folder / METRICS, record.model_dump_json(exclude={REPORTS}), MAXIMUM_METRICS):
        raise FedmefError(
            f"{folder / METRICS} would have more than {MAXIMUM_METRICS:,} bytes, which are never read: too "
            "many devices fail"
        )


def read_rounds(folder: Path) -> list[Round]:
    """All that was logged; raises `UserError` for a line that is no round's."""
    file = folder / METRICS
    rounds = [read_record(Round, line, file) for line in read_lines(file, MAXIMUM_METRICS)]
    try:
        lines = islice(read_lines(folder / DEVICES, MAXIMUM_DEVICES), len(rounds))
        found = [read_record(Reports, line, folder / DEVICES) for line in lines]
    except UserError as error:
        warnings.warn(f"{error}; what devices measured is left out", FedmefWarning, stacklevel=2)
        return rounds
    reports = {line.round: line.device_reports for line in found}
    for record in rounds:
        record.device_reports.extend(reports.get(record.round, ()))
    return rounds


def forget_rounds(folder: Path, first: int) -> None:
    """Keep what was logged before this round; the others will be run again."""
    lines = list(read_lines(folder / METRICS, MAXIMUM_METRICS))[:first]
    write_atomically(folder / METRICS, b"".join(lines))
    try:
        kept = [
            line
            for line in read_lines(folder / DEVICES, MAXIMUM_DEVICES)
            if line.endswith(b"\n") and read_record(Reports, line, folder / DEVICES).round < first
        ]
    except UserError:
        kept = []  # damaged
    if (folder / DEVICES).exists():
        write_atomically(folder / DEVICES, b"".join(kept))


def read_lines(file: Path, limit: int) -> Iterator[bytes]:
    """The lines of a file, with their ends; none when there is no file."""
    try:
        content = read_ordinary(file, limit)
    except FileNotFoundError:
        return iter(())
    if content.count(b"\n") > MOST_LINES:
        raise UserError(f"{file} is damaged: it has more than {MOST_LINES:,} lines; {AGAIN}")
    if content.count(b"{") > MOST_TABLES:
        raise UserError(f"{file} is damaged: it has more than {MOST_TABLES:,} entries")
    return iter(io.BytesIO(content))


def read_record(kind: type[Kind], text: bytes, file: Path) -> Kind:
    """Raises `UserError` that names the file and the first thing that is wrong."""
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))[:200]
        raise UserError(f"{file} is damaged: {place}{place and ': '}{first['msg'][:500]}; {AGAIN}") from None


def _append(file: Path, line: str, limit: int) -> bool:
    """Whether it fitted."""
    content = f"{line}\n".encode()
    with file.open("ab") as opened:
        if opened.tell() + len(content) > limit:
            return False
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())  # the checkpoint that follows must not be ahead of its metrics
    return True
