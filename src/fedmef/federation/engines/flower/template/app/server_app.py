"""The server's half. `[tool.flwr.app.config]` in pyproject.toml is its experiment."""

from fedmef.federation.engines.flower import server_app

from .data import load_data
from .model import load_model

app = server_app(load_model, load_data)
