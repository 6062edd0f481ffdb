"""Kinds of [select], one per file, named by the file."""
