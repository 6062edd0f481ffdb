"""What is inferred from words and programs to decide what a repair may keep."""
