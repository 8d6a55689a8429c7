"""The device's half."""

from fedmef.federation.engines.flower import client_app

from .task import load_data, load_model

app = client_app(load_model, load_data)
