"""Other people's files, one record after another."""
