"""Evaluations: the runner, its results, and the statistics over problems and seeds."""
