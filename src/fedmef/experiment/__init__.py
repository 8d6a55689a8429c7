"""What is asked: every setting, names of plug-ins, seeds."""
