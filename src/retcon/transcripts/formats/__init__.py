"""Formats, one per file: a new one is a file here or below with an instance of `Format`, and is listed nowhere else."""
