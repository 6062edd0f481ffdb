"""Papers that `retcon reproduce` runs in miniature, with their claims and arms."""
