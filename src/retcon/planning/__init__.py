"""What a job will need, before it starts: memory, disk."""
