"""Demonstrations: what a cold start learns from, made of a teacher, a model, annotated solutions or transcripts."""
