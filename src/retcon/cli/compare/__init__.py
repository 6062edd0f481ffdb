"""`retcon compare`."""
