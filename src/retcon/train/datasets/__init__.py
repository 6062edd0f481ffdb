"""Data of supervised and preference training."""
