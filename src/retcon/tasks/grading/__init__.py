"""How graders are found, opened and called, and what is done with what they say. The graders are in `tasks/graders`."""
