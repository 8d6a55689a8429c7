"""Devices that one machine simulates, and the faults and attackers that tests inject into them."""
