"""Engines: the same server and device code, whatever carries the messages."""

import os

from fedmef.device.measured import DeviceReport
from fedmef.errors import UserError
from fedmef.federation.engines.base import Engine, Lost
from fedmef.federation.engines.inline import InlineEngine
from fedmef.federation.engines.processes import ProcessEngine
from fedmef.federation.simulated.fleet import Fleet, prepared_model

__all__ = [
    "DeviceReport",
    "Engine",
    "Fleet",
    "InlineEngine",
    "Lost",
    "ProcessEngine",
    "prepared_model",
    "start_engine",
]


def start_engine(fleet: Fleet) -> Engine:
    """The engine that the experiment asks for."""
    experiment = fleet.experiment
    workers = min(experiment.workers or _cores(), experiment.devices_per_round)
    wanted = experiment.engine
    if wanted == "auto":
        # One GPU is faster with one process at a time.
        wanted = "processes" if workers > 1 and experiment.device == "cpu" else "inline"
    if wanted == "inline":
        return InlineEngine(fleet)
    if wanted == "flower":
        return _simulation(fleet, workers)
    return ProcessEngine(experiment, fleet.dataset, workers, fleet.memory)


def _simulation(fleet: Fleet, workers: int) -> Engine:
    try:
        from fedmef.federation.engines.flower.simulation import SimulationEngine  # noqa: PLC0415  (flwr is an extra)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("flwr", "ray"):
            raise
        raise UserError(
            f"engine = 'flower': {missing} is not installed; pip install 'fedmef[flower]'"
        ) from None
    # One GPU is faster with one process at a time.
    return SimulationEngine(fleet, workers if fleet.experiment.device == "cpu" else 1)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
