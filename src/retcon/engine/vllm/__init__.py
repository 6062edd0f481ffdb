"""vLLM servers as an engine with token ids, log-probs and trained weights."""
