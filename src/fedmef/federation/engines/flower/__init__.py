"""Flower carries the messages: in a simulation on Ray, or from a SuperLink to SuperNodes on real machines.

This folder only translates messages; what a server and a device do is the same code as in every engine.
"""

from fedmef.federation.engines.flower.quiet import keep_quiet

keep_quiet()

from fedmef.federation.engines.flower.apps import client_app, server_app  # noqa: E402
from fedmef.federation.engines.flower.engine import FlowerEngine  # noqa: E402
from fedmef.federation.engines.flower.strategy import FedMefStrategy  # noqa: E402

__all__ = ["FedMefStrategy", "FlowerEngine", "client_app", "server_app"]
