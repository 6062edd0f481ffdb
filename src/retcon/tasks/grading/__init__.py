"""How graders are found, opened and called, and what their verdicts lead to. The graders are in `tasks/graders`."""
