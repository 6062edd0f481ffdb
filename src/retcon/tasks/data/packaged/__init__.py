"""Data sets of the `datasets` package: from the hub, and as it saves them."""
