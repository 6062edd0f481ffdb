"""Formats, one a file: a new one is a file here that calls `register`, and is named nowhere else."""
