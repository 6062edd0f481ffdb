"""Demonstrations, which a cold start learns from: by a teacher, a model, annotated solutions or transcripts."""
