"""Graders of replies, one file per kind."""
