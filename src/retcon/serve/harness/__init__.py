"""Rollouts that a harness makes, a loop of somebody else's around the model (docs/training/harnesses.md).

solving.py: the recipe's function ─► opening.py: an endpoint for each rollout ─► rolling.py: what was said there, as a
trajectory
"""
