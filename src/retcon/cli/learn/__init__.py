"""The commands that train, and `retcon demos`."""
