"""A session inside: its interpreter, the frozen copies of it, and the keeper of both."""
