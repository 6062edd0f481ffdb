"""What a piece of work will take, before it starts: memory, disk."""
