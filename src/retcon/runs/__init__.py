"""Runs: their folder, their manifest, what they cost."""
