"""vLLM servers as an engine, with token ids and log-probs, and the weights of a training."""
