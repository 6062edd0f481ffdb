"""Purifying files from end to end: where outputs go, several cores, counts, resuming."""
