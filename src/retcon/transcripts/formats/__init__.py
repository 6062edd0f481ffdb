"""Formats, one per file: a new one is a file here or below that calls `register`, and is listed nowhere else."""
