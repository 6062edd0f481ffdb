"""Kinds of [demos], one per file of that name."""
