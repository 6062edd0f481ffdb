"""What supervised and preference training learn from."""
