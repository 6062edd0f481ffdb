"""Kinds of tools, one per file, named by the file."""
