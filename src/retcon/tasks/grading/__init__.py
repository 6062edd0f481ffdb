"""Registry and use of graders; the graders are in `tasks/graders`."""
