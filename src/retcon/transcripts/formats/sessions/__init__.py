"""Logs of agents that keep a session in a file, one event a line."""
