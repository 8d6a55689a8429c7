"""Engines: the same server and device code, whatever carries the messages."""

import os
from typing import TYPE_CHECKING

from fedmef.errors import UserError
from fedmef.federation.engines.base import Engine, Lost

if TYPE_CHECKING:
    from fedmef.federation.simulated.fleet import Fleet

__all__ = ["Engine", "Lost", "start_engine"]


def start_engine(fleet: "Fleet") -> Engine:
    """The engine that the experiment asks for."""
    experiment = fleet.experiment
    workers = min(experiment.workers or _cores(), experiment.devices_per_round)
    wanted = experiment.engine
    if wanted == "auto":
        # One GPU is faster with one process at a time. A limit is enforced on a process of its own only.
        several = workers > 1 or experiment.device_memory is not None
        wanted = "processes" if several and experiment.accelerator == "cpu" else "inline"
    if wanted == "inline":
        from fedmef.federation.engines.inline import InlineEngine  # noqa: PLC0415  (one of three)

        return InlineEngine(fleet)
    if wanted == "flower":
        return _simulation(fleet, workers)
    from fedmef.federation.engines.processes import ProcessEngine  # noqa: PLC0415

    return ProcessEngine(fleet, workers)


def _simulation(fleet: "Fleet", workers: int) -> Engine:
    try:
        from fedmef.federation.engines.flower.simulation import SimulationEngine  # noqa: PLC0415  (an extra)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("flwr", "ray"):
            raise
        raise UserError(
            f"engine = 'flower': {missing} is not installed; pip install 'fedmef[flower]'"
        ) from None
    # One GPU is faster with one process at a time.
    return SimulationEngine(fleet, workers if fleet.experiment.accelerator == "cpu" else 1)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
