"""What is watched while a run trains: what it has spent, whether it drifts, and losses that are no number."""
