"""Inside of a session: its interpreter, frozen copies of it, and their keeper."""
