"""Papers that `retcon reproduce` runs in miniature: what each found, and by which arms it is looked at here."""
