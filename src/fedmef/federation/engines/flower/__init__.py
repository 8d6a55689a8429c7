"""Flower carries the messages: in a simulation on Ray, or from a SuperLink to SuperNodes on real machines.

This folder only translates messages; what a server and a device do is the same code as in every engine.
"""

from fedmef.federation.engines.flower.quiet import keep_quiet

keep_quiet()

from fedmef.federation.engines.flower.client import client_app  # noqa: E402
from fedmef.federation.engines.flower.server import server_app  # noqa: E402

__all__ = ["client_app", "server_app"]
