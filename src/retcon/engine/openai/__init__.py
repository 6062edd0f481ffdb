"""Chat-completions servers as an engine: text alone, so for evaluation and not for training."""
