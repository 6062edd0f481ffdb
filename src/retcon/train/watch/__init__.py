"""What is monitored while a run trains: what it has spent, whether it drifts, and losses that are not finite."""
