"""Formats of agents, which keep steps or events."""
