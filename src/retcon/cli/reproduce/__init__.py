"""`retcon reproduce`."""
