"""Kinds of [engine], one per file of that name."""
