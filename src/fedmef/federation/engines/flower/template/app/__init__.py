"""A Flower app that trains a sparse network with fedmef."""
