"""A finished run's model for other programs."""
