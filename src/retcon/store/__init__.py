"""Files: atomic writes, JSON Lines, indexes, resumable outputs."""
