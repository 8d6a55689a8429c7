"""The device's half: its data. The network comes with the messages, so a device needs no model code."""

from fedmef.federation.engines.flower import client_app

from .data import load_data

app = client_app(load_data)
