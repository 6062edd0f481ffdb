"""One trajectory from prompt to end, groups of them, and the lookahead."""
