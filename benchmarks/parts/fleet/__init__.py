"""Discrete-event simulator of the engines of one training step (docs/models/scale.md)."""
