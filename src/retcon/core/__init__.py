"""The vocabulary: trajectories, samples, errors, seeds. Standard library alone."""
