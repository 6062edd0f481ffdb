"""What is read out of words and of programs, to tell what a repair may keep."""
