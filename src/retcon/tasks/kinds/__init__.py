"""Kinds of [task], one per file and of its name."""
