"""Collecting a round's updates: a failed device costs only its own; if too few remain, others are asked."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fedmef.device.lost import LONGEST_REASON
from fedmef.errors import FedmefError, printable
from fedmef.experiment.randomness import generator_for
from fedmef.experiment.settings import Experiment
from fedmef.federation.engines.base import Engine, Lost
from fedmef.federation.privacy import sample_devices
from fedmef.federation.server import Server
from fedmef.federation.update_checks import Rejection
from fedmef.runs.records import DeviceReport, Failed
from fedmef.wire.job import Job
from fedmef.wire.update import Update

CLOCKS_DIFFER = 10.0  # seconds, at most, of what a device measures and of what is waited for it


class DeviceError(Exception):
    """Carries a device's own traceback, for --debug."""


@dataclass
class Collected:
    """What the devices of a round gave.

    Attributes:
        devices: those of the last attempt; `updates` are what can be used of theirs.
        lost, rejected: devices without an answer and with an unusable one, of all attempts.
        doubted: devices whose update was used, though something that they said was not.
        reports: what the devices that answered measured of themselves, in all attempts.
        attempts: how often the round was tried.
        bytes_down, bytes_up: of all attempts.
    """

    devices: list[int] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)
    lost: list[Failed] = field(default_factory=list)
    rejected: list[Failed] = field(default_factory=list)
    doubted: list[Failed] = field(default_factory=list)
    reports: list[DeviceReport] = field(default_factory=list)
    attempts: int = 0
    bytes_down: int = 0
    bytes_up: int = 0


def collect(experiment: Experiment, job: Job, server: Server, engine: Engine) -> Collected:
    """Bring the model to devices until at least `min_devices` gave an update that can be used."""
    collected = Collected()
    tried: set[int] = set()
    none_worked = False
    while collected.attempts < experiment.round_attempts:
        attempt = collected.attempts
        collected.attempts += 1
        collected.devices = choose_devices(experiment, job.round, attempt, tried)
        tried |= set(collected.devices)
        answers = _ask(replace(job, attempt=attempt), server, engine, collected)
        received = {device: answer for device, answer in answers.items() if isinstance(answer, bytes)}
        updates, rejections = server.check(received, job)
        collected.updates, doubts = server.checks.weigh(updates)
        error = _error_of_all(answers, rejections, job)
        if error is not None and (none_worked or _needs_no_proof(experiment, collected.devices)):
            raise error
        none_worked = error is not None

        lost = {device: answer.reason for device, answer in answers.items() if isinstance(answer, Lost)}
        refused = {rejection.device: rejection.reason for rejection in rejections}
        for device in lost | refused:
            server.missed(device)
        collected.lost += _named(lost, attempt)
        collected.rejected += _named(refused, attempt)
        collected.doubted += _named(doubts, attempt)
        collected.bytes_up += sum(map(len, received.values()))
        if len(collected.updates) >= experiment.fewest_devices:
            return collected
    reasons = lost | refused
    device = min(reasons)
    raise FedmefError(
        f"round {job.round + 1}: {len(collected.updates)} of {len(collected.devices)} devices gave a usable "
        f"update where {experiment.fewest_devices} are needed, {experiment.round_attempts} times over "
        f"(device {device}: {reasons[device]}); resume the run when devices are back, or with a lower "
        "--min-devices"
    )


def _ask(job: Job, server: Server, engine: Engine, collected: Collected) -> dict[int, bytes | Lost]:
    """What the attempt's devices answer; those that have lost what they held are sent all of it at once."""
    answers: dict[int, bytes | Lost] = {}
    devices = collected.devices
    for _ in range(2):
        messages = server.broadcast(job, devices)
        started = time.perf_counter()
        answers |= engine.train(messages)
        _take_reports(engine, job.attempt, time.perf_counter() - started, collected)
        collected.bytes_down += sum(map(len, messages.values()))
        devices = [
            device for device, answer in answers.items() if isinstance(answer, Lost) and answer.needs_all
        ]
        for device in devices:
            server.missed(device)
        if not devices:
            break
    return answers


def _take_reports(engine: Engine, attempt: int, waited: float, collected: Collected) -> None:
    """What the devices say of themselves, where that can be."""
    for report in engine.reports:
        if isinstance(report, Failed):
            collected.doubted += _named({report.device: report.reason}, attempt)
        elif report.seconds > waited + CLOCKS_DIFFER:
            reason = "its report of itself is left out: more seconds than it was waited for"
            collected.doubted += _named({report.device: reason}, attempt)
        else:
            collected.reports.append(report)


def choose_devices(
    experiment: Experiment, round_number: int, attempt: int = 0, tried: set[int] | None = None
) -> list[int]:
    """The devices of a round, ascending; those of a further attempt are others, while there are others."""
    if experiment.noise_multiplier:
        return sample_devices(experiment, round_number)
    if attempt == 0:
        generator = generator_for(experiment.seed, "devices", round_number)
        chosen = generator.choice(experiment.devices, experiment.devices_per_round, replace=False)
        return sorted(chosen.tolist())
    generator = generator_for(experiment.seed, "devices", round_number, attempt)
    order: list[int] = generator.permutation(experiment.devices).tolist()
    others_first = sorted(order, key=lambda device: device in (tried or ()))
    return sorted(others_first[: experiment.devices_per_round])


def _needs_no_proof(experiment: Experiment, devices: Sequence[int]) -> bool:
    """An error that hits every device is no fault of a device: it would come again with any others.

    Few devices may all be broken, though: that is proved with others, if others will be asked.
    """
    if experiment.noise_multiplier:  # a private round is never repeated
        return len(devices) > 1
    return experiment.round_attempts == 1 or len(devices) == experiment.devices


def _error_of_all(
    answers: Mapping[int, bytes | Lost], rejections: Sequence[Rejection], job: Job
) -> FedmefError | None:
    """The first device's error when an attempt hit every device with one."""
    diverged = {rejection.device: rejection for rejection in rejections if rejection.diverged}
    raised = {
        device: answer for device, answer in answers.items() if isinstance(answer, Lost) and answer.traceback
    }
    if len(diverged) + len(raised) < len(answers) or not answers:
        return None
    if raised:
        first = raised[min(raised)]
        error = FedmefError(first.reason)
        error.__cause__ = DeviceError(first.traceback)
        return error
    return FedmefError(
        f"round {job.round + 1}: {diverged[min(diverged)].reason}; "
        f"lower learning_rate (now {job.learning_rate:g})"
    )


def _named(reasons: Mapping[int, str], attempt: int) -> list[Failed]:
    """For the record; a reason may be a stranger's, of characters that no file can have."""
    return [
        Failed(device=device, attempt=attempt, reason=printable(reason)[:LONGEST_REASON])
        for device, reason in sorted(reasons.items())
    ]
