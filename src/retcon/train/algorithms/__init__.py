"""Algorithms of [rl], one per file of that name: advantage, loss and keys."""
