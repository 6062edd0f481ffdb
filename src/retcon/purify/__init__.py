"""What is done about a failed turn, during a rollout and afterwards in transcripts."""
