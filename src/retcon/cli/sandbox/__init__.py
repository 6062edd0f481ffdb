"""`retcon sandbox`."""
