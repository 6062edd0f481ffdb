"""The algorithms of [rl], one a file: its advantage, its loss and its own keys. A file's name is its name."""
