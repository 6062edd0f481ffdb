"""Files: whole or not at all, line by line, indexed, resumable."""
