"""Chat families, one `FAMILY` per public module, named as the module."""
