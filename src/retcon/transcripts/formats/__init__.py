"""Formats, one a file: a new one is a file here or below that calls `register`, and is named nowhere else."""
