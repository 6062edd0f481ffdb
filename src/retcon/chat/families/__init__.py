"""One family per module, each with its `FAMILY`; the module's name is the family's, and none begins with `_`."""
