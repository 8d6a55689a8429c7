"""Flower and Ray at home: no telemetry, no look for updates, no packages installed behind the user's back."""

import os

SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Once it was shut down, Ray must not start again when Flower says goodbye to its workers.
    "RAY_ENABLE_AUTO_CONNECT": "0",
    # The experiment says which GPU a device uses: Ray must not hide them.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def keep_quiet() -> None:
    """Set what is not set yet. Before flwr is imported: it reads some of these then."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
