"""Other people's transcripts: their formats, what failed in them, and purifying them."""
