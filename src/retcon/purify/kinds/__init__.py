"""Kinds of [repair], one per file, named as the file."""
