"""`retcon purify` and `retcon diff`."""
