"""Kinds of [credit], one per file of that name."""
