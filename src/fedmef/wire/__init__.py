"""What travels between server and devices, as bytes."""
