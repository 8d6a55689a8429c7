"""Flower carries the messages: in a simulation on Ray, or from a SuperLink to SuperNodes on real machines.

This folder only translates messages; what a server and a device do is the same code as in every engine. Each
half of an app is imported when it is first used: a device has no need of the server's.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedmef.federation.engines.flower.quiet import keep_quiet

if TYPE_CHECKING:
    from fedmef.federation.engines.flower.client import client_app
    from fedmef.federation.engines.flower.server import server_app

__all__ = ["client_app", "server_app"]

keep_quiet()

_PLACES = {"client_app": "client", "server_app": "server"}


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
