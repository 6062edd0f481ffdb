"""Files of problems, row by row."""
