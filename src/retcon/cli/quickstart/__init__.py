"""`retcon quickstart`."""
