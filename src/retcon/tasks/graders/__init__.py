"""Whether a reply answers a task rightly: one file a kind."""
