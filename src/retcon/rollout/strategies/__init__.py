"""Kinds of [strategy], one per file, named by the file."""
