"""Third-party transcripts: their formats, failures and repair."""
