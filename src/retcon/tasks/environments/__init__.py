"""Environments of other frameworks as tasks: their rows, their tools, their rewards (docs/training/environments.md)."""
