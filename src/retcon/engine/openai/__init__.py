"""Chat-completions servers as an engine, without training."""
