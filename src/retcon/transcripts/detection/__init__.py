"""Which format a file has, and what in it looks like tool use that cannot be read."""
