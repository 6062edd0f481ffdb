"""Whether a reply answers a task correctly: one file per kind."""
