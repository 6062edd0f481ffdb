"""Demonstrations for a cold start: teachers, models, annotated solutions, transcripts."""
