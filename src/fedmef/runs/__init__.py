"""One run on disk: its directory, records, checkpoints."""
