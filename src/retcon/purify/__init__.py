"""Repair of failed turns, during a rollout and in transcripts."""
