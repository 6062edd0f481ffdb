"""Other people's files, a record after another."""
