"""Confinement of workers and their calls, by tier."""
