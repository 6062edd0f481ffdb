"""Estimates of memory, disk and time before a job starts."""
