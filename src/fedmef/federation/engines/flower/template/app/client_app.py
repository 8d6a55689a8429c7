"""The device's half, the same on every device: the network comes with the messages.

A SuperNode says where its data are: `--node-config 'partition-id=0 data="/folder"'`; see README.md. One that
does not gets them from `load_data`.
"""

from fedmef.federation.engines.flower import client_app

from .data import load_data

app = client_app(load_data)
