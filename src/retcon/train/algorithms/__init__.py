"""The algorithms of [rl], one per file, which gives it its name: advantage, loss and its own keys."""
